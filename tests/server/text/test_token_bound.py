"""The fewest tokens of a text, against what the text is encoded to."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from tests.server.text.byte_tokenizer import byte_tokenizer
from tidegate_server.gguf_file import open_gguf
from tidegate_server.model_source import resolve_model
from tidegate_server.text.byte_alphabet import CHARACTER_OF_BYTE
from tidegate_server.text.gguf_tokenizer import build_gguf_tokenizer
from tidegate_server.text.token_bound import TokenBound, token_bound
from tidegate_server.text.tokenizer import Tokenizer, load_gguf_tokenizer

BYTES = {CHARACTER_OF_BYTE[byte]: byte for byte in range(256)}


def byte_level(vocab: dict[str, int] = BYTES, **options: object) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(vocab=dict(vocab), merges=[], **options))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


@cache
def composing() -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.normalizer = normalizers.NFC()
    return backend


@cache
def sentencepiece() -> tokenizers.Tokenizer:
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁ab"]
    kinds = [2, 3, *(6 for _ in range(256)), 1, 1, 1, 1, 1]
    return build_gguf_tokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": pieces,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.scores": [0.0] * 258 + [-9.0, -9.0, -9.0, -1.0, -2.0],
        },
        Path("m.gguf"),
    )


@cache
def builtin() -> Tokenizer:
    return load_gguf_tokenizer(open_gguf(resolve_model("builtin://smollm2-135m-instruct").path))


def bound_of(backend: tokenizers.Tokenizer) -> TokenBound:
    bound = token_bound(backend)
    assert bound is not None
    return bound


# Blanks, letters that compose, and control characters that the built-in vocabulary lacks.
TEXTS = st.text(st.sampled_from("ab <|start|>\t\0\x01\x7f\u03b1\u0313\u0300\u0345é한😀")) | st.text()


@settings(deadline=None)
@given(TEXTS)
def test_no_text_has_fewer_tokens(text: str) -> None:
    assert builtin().fewest_tokens(text) <= len(builtin().encode(text, add_special_tokens=False))
    plain = byte_tokenizer()
    assert plain.fewest_tokens(text) <= len(plain.encode(text, add_special_tokens=False))
    for backend in (composing(), sentencepiece()):
        assert bound_of(backend).fewest_tokens(text) <= len(backend.encode(text, add_special_tokens=False).ids)


def test_a_long_text_is_told_to_be_long() -> None:
    text = "The capital of France is Paris. " * 10_000
    for fewest in (builtin().fewest_tokens(text), bound_of(composing()).fewest_tokens(text)):
        assert fewest > 1000
    assert bound_of(sentencepiece()).fewest_tokens(text) > 10_000


def test_characters_that_the_vocabulary_lacks_do_not_count() -> None:
    without = {character: token_id for character, token_id in BYTES.items() if character != CHARACTER_OF_BYTE[1]}
    backend = byte_level(without)
    assert bound_of(backend).fewest_tokens("\x01" * 1000 + "a") == 1
    assert backend.encode("\x01" * 1000 + "a").ids == [ord("a")]


def absorbing() -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    return backend


def stripping() -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    return backend


def dropping_blanks() -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", behavior="removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return backend


def fusing() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer(models.BPE(vocab={"<unk>": 0, "a": 1}, merges=[], unk_token="<unk>", fuse_unk=True))


def by_words() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer(models.WordLevel(vocab={"<unk>": 0}, unk_token="<unk>"))


@pytest.mark.parametrize("make", [absorbing, stripping, dropping_blanks, fusing, by_words])
def test_where_a_token_may_stand_for_any_length_there_is_no_bound(make: Callable[[], tokenizers.Tokenizer]) -> None:
    assert token_bound(make()) is None
