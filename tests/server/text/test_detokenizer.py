"""Text from token ids as they come."""

import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from tests.server.text.byte_tokenizer import END, START, byte_tokenizer
from tidegate_server.text.detokenizer import Detokenizer
from tidegate_server.text.tokenizer import Tokenizer

BYTE_LEVEL = byte_tokenizer()


def fallback_tokenizer() -> Tokenizer:
    """SentencePiece's kind: pieces with ▁ for spaces, bytes for what it has no piece for, a leading space dropped."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "▁b", "a", "b", "é"]
    vocab = {piece: token_id for token_id, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(backend)


FALLBACK = fallback_tokenizer()
FIRST_PIECE = 257


def pushed(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.finish()]


def test_half_a_character_is_never_shown() -> None:
    parts = pushed(BYTE_LEVEL.detokenizer([]), list("a€😀".encode()))
    assert parts == ["a", "", "", "€", "", "", "", "😀", ""]


def test_special_tokens_are_no_text() -> None:
    assert pushed(BYTE_LEVEL.detokenizer([]), [START, ord("a"), END, ord("b")]) == ["", "a", "", "b", ""]


@given(st.lists(st.integers(0, 257), max_size=24))
def test_joined_byte_level_text_is_what_decoding_all_at_once_gives(token_ids: list[int]) -> None:
    assert "".join(pushed(BYTE_LEVEL.detokenizer([]), token_ids)) == BYTE_LEVEL.decode(token_ids)


@given(st.text(max_size=16))
def test_any_text_comes_back(text: str) -> None:
    token_ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    assert "".join(pushed(BYTE_LEVEL.detokenizer([]), token_ids)) == text


CHARACTERS = st.sampled_from([*("▁", "▁a", "▁b", "a", "b", "é"), *"€😀ß"])


def fallback_ids(parts: list[str]) -> list[int]:
    pieces = ("▁", "▁a", "▁b", "a", "b", "é")
    token_ids: list[int] = []
    for part in parts:
        if part in pieces:
            token_ids.append(FIRST_PIECE + pieces.index(part))
        else:
            token_ids.extend(1 + byte for byte in part.encode())
    return token_ids


@given(st.lists(CHARACTERS, max_size=16))
def test_joined_windowed_text_is_what_decoding_all_at_once_gives(parts: list[str]) -> None:
    token_ids = fallback_ids(parts)
    assert "".join(pushed(FALLBACK.detokenizer([]), token_ids)) == FALLBACK.decode(token_ids)


def test_an_output_that_begins_with_a_space_keeps_it_after_a_prompt() -> None:
    prompt = fallback_ids(["▁a"])
    assert pushed(FALLBACK.detokenizer(prompt), fallback_ids(["▁b", "a"])) == [" b", "a", ""]


def test_broken_bytes_are_held_back_for_a_few_tokens_only() -> None:
    broken = 1 + 0x80  # the token of a byte that no character starts with
    parts = pushed(FALLBACK.detokenizer([]), [broken] * 9)
    assert parts == ["", "", "", "\ufffd" * 4, "", "", "", "\ufffd" * 4, "", "\ufffd"]
