"""Stop strings in a text that comes in pieces."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate_server.text.stop import StopStrings


def run(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    """The text let through, and the stop string that ended it."""
    strings = StopStrings(stops)
    let_through = ""
    for piece in pieces:
        passed = strings.push(piece)
        let_through += passed.text
        if passed.stop is not None:
            return let_through, passed.stop
    return let_through + strings.finish(), None


def test_text_without_stop_strings_passes_at_once() -> None:
    strings = StopStrings([])
    assert [strings.push(piece).text for piece in ("a", "", "bc")] == ["a", "", "bc"]


def test_a_stop_string_across_pieces_is_found_and_not_shown() -> None:
    assert run(["Hello ", "wor", "ld, ", "bye"], ["world"]) == ("Hello ", "world")


def test_only_what_could_begin_a_stop_is_held_back() -> None:
    strings = StopStrings(["END"])
    assert strings.push("the E").text == "the "
    assert strings.push("NT").text == "ENT"
    assert strings.push("EN").text == ""
    assert strings.finish() == "EN"


def test_a_prefix_that_repeats_itself_is_held_back_in_full() -> None:
    assert run(["aa", "ab"], ["aab"]) == ("a", "aab")


def test_the_string_that_ends_first_wins() -> None:
    assert run(["xabcdy"], ["bcd", "abcd", "cd", "y"]) == ("x", "abcd")
    assert run(["one two"], ["two", "one"]) == ("", "one")


SMALL = st.text(alphabet="abc", max_size=12)


@given(text=SMALL, stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3), data=st.data())
def test_every_cut_gives_what_reading_character_by_character_gives(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = run(list(text), stops)
    assert run(pieces, stops) == expected
    let_through, stop = expected
    if stop is None:
        assert let_through == text
        assert not any(each in text for each in stops)
    else:
        assert text.startswith(let_through + stop)
        # Nothing ends earlier than the stop that was found.
        assert not any(each in text[: len(let_through) + len(stop) - 1] for each in stops)
