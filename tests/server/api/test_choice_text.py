"""One choice's text from the engine's outputs, however the tokens are spread over steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.text.byte_tokenizer import END, byte_tokenizer
from tidegate_server.api.choice_text import ChoiceText, Delta
from tidegate_server.engine.messages import FinishReason, RequestOutput
from tidegate_server.errors import EngineError, Overloaded

TOKENIZER = byte_tokenizer()


def fold(steps: list[list[int]], finish: FinishReason, stop: list[str], min_tokens: int = 0) -> list[Delta]:
    choice = ChoiceText(0, TOKENIZER.detokenizer([]), stop, min_tokens)
    deltas = []
    for number, token_ids in enumerate(steps):
        last = number == len(steps) - 1
        output = RequestOutput(
            request_id="r",
            token_ids=tuple(token_ids),
            logprobs=tuple(-0.5 for _ in token_ids),
            finish_reason=finish if last else None,
        )
        deltas.append(choice.take(output))
        if deltas[-1].finish is not None:
            break
    return deltas


def told(deltas: list[Delta]) -> tuple[str, int, str | None, tuple[tuple[int, int], ...]]:
    details = tuple((detail.token_id, detail.text_offset) for delta in deltas for detail in delta.details)
    return (
        "".join(delta.text for delta in deltas),
        sum(delta.num_tokens for delta in deltas),
        deltas[-1].finish,
        details,
    )


@given(
    token_ids=st.lists(st.sampled_from(list("ab€".encode())), min_size=1, max_size=12),
    stop=st.lists(st.sampled_from(["ab", "b€", "€", "aab", "\ufffd"]), max_size=2),
    ends_with_token=st.booleans(),
    min_tokens=st.integers(0, 4),
    data=st.data(),
)
def test_any_spread_over_steps_gives_the_same(
    token_ids: list[int], stop: list[str], ends_with_token: bool, min_tokens: int, data: st.DataObject
) -> None:
    if ends_with_token:
        token_ids = [*token_ids, END]
    finish = FinishReason.STOP if ends_with_token else FinishReason.LENGTH
    cuts = sorted(data.draw(st.sets(st.integers(1, len(token_ids) - 1), max_size=4))) if len(token_ids) > 1 else []
    steps = [token_ids[start:end] for start, end in zip([0, *cuts], [*cuts, len(token_ids)], strict=True)]
    one_by_one = fold([[token_id] for token_id in token_ids], finish, stop, min_tokens)
    assert told(fold(steps, finish, stop, min_tokens)) == told(one_by_one)


def test_tokens_after_a_stop_string_are_not_counted() -> None:
    deltas = fold([list(b"one two three")], FinishReason.LENGTH, ["two"])
    assert told(deltas)[:3] == ("one ", len("one two"), "stop")


def test_a_stop_string_beats_the_length_it_was_reached_with() -> None:
    assert told(fold([list(b"ab")], FinishReason.LENGTH, ["b"]))[:3] == ("a", 2, "stop")


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    assert told(fold([list("€".encode()[:2])], FinishReason.LENGTH, []))[:3] == ("\ufffd", 2, "length")


def test_failures_become_errors() -> None:
    choice = ChoiceText(0, TOKENIZER.detokenizer([]), [], 0)
    with pytest.raises(EngineError, match="NaN"):
        choice.take(RequestOutput(request_id="r", finish_reason=FinishReason.ERROR, error="NaN"))
    with pytest.raises(Overloaded, match="send it again"):
        choice.take(RequestOutput(request_id="r", finish_reason=FinishReason.ABORT))
