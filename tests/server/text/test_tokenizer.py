"""Tokenizers from GGUF files and folders, against the ones that transformers builds from the same files."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from tests.server.text.byte_tokenizer import END, byte_tokenizer
from tidegate_server.errors import ModelNotFound, ModelNotSupported
from tidegate_server.gguf_file import GgufFile, GgufValue, open_gguf
from tidegate_server.model_source import resolve_model
from tidegate_server.text.gguf_tokenizer import build_gguf_tokenizer
from tidegate_server.text.tokenizer import Tokenizer, load_folder_tokenizer, load_gguf_tokenizer

TEXTS = (
    "The capital of France is",
    "12345 apples cost $3.14, or 2,718 pence.",
    "def f(x):\n    return x + 1\n\n\nprint(f(41))",
    "naïve café — “quotes” 日本語 한국어 العربية ไทย",
    "👩‍👩‍👧 e\u0301 \u200b\t\r\n  trailing  ",
    "<|im_start|>user\nhi<|im_end|>\n",
    "it's we'll I'M don't",
    " 1",
    "",
)


@cache
def builtin() -> GgufFile:
    return open_gguf(resolve_model("builtin://smollm2-135m-instruct").path)


@cache
def ours() -> Tokenizer:
    return load_gguf_tokenizer(builtin())


@pytest.fixture(scope="module")
def reference() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(builtin().path.parent), gguf_file=builtin().path.name)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_those_of_transformers(text: str, reference: Any) -> None:
    assert ours().encode(text, add_special_tokens=True) == reference(text).input_ids


def test_blanks_before_a_digit_stay_together_as_the_model_was_trained() -> None:
    # The model's own tokenizer cuts each digit off before anything else; transformers' reading of the GGUF file
    # does not, and splits the blanks. No merge of the vocabulary holds a digit, which shows who is right.
    merges = builtin().metadata["tokenizer.ggml.merges"]
    assert isinstance(merges, list)
    assert not any(re.search(r"\d", str(merge)) for merge in merges)
    newlines = ours().encode("\n\n", add_special_tokens=False)
    assert len(newlines) == 1
    assert ours().encode("\n\n12", add_special_tokens=False)[:1] == newlines


# The vocabulary has no tokens for some control characters and for planes of Unicode where nothing is assigned.
@settings(deadline=None)
@given(st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"]), max_size=40))
def test_every_text_comes_back(text: str) -> None:
    token_ids = ours().encode(text, add_special_tokens=False)
    detokenizer = ours().detokenizer([])
    joined = "".join(map(detokenizer.push, token_ids)) + detokenizer.finish()
    assert joined == text
    assert b"".join(map(ours().token_bytes, token_ids)) == text.encode()


def test_special_tokens_have_their_names_as_bytes_and_no_text() -> None:
    assert byte_tokenizer().token_text(END) == "<|end|>"
    assert byte_tokenizer().decode([END]) == ""


def test_an_id_past_the_vocabulary_has_no_bytes() -> None:
    assert byte_tokenizer().token_bytes(10_000) == b""


def test_a_vocabulary_that_splits_in_an_unknown_way_is_refused() -> None:
    metadata: dict[str, GgufValue] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a"],
        "tokenizer.ggml.pre": "odd",
    }
    with pytest.raises(ModelNotSupported, match="'odd'"):
        build_gguf_tokenizer(metadata, Path("m.gguf"))


def test_an_unknown_kind_of_vocabulary_is_refused() -> None:
    with pytest.raises(ModelNotSupported, match="'bert'"):
        build_gguf_tokenizer({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["a"]}, Path("m.gguf"))


LLAMA3: dict[str, GgufValue] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "llama-bpe",
    "tokenizer.ggml.tokens": ["a", "b", "<|begin_of_text|>"],
    "tokenizer.ggml.token_type": [1, 1, 3],
    "tokenizer.ggml.bos_token_id": 2,
}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        pytest.param({}, [2, 0, 1], id="Llama 3 was trained with it"),
        pytest.param({"tokenizer.ggml.pre": "gpt-2"}, [0, 1], id="GPT-2 was not"),
        pytest.param({"tokenizer.ggml.add_bos_token": False}, [0, 1], id="the file says no"),
        pytest.param({"tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.add_bos_token": True}, [2, 0, 1], id="or yes"),
    ],
)
def test_the_begin_token_is_there_where_the_model_was_trained_with_it(
    metadata: dict[str, GgufValue], expected: list[int]
) -> None:
    tokenizer = Tokenizer(build_gguf_tokenizer(LLAMA3 | metadata, Path("m.gguf")))
    assert tokenizer.encode("ab", add_special_tokens=True) == expected
    assert tokenizer.encode("ab", add_special_tokens=False) == [0, 1]


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"tokenizer.ggml.merges": ["a c"]}, id="merges of what is no token"),
        pytest.param({"tokenizer.ggml.token_type": ["odd"]}, id="kinds that are no numbers"),
    ],
)
def test_a_damaged_vocabulary_is_refused_with_its_file(metadata: dict[str, GgufValue]) -> None:
    file = GgufFile(path=Path("m.gguf"), metadata=LLAMA3 | metadata, tensors={}, data=memoryview(b""))
    with pytest.raises(ModelNotSupported, match=r"^m\.gguf holds no tokenizer that this server can build"):
        load_gguf_tokenizer(file)


def test_a_sentencepiece_vocabulary_merges_by_score_and_falls_back_to_bytes() -> None:
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁a", "▁ab"]
    kinds = [2, 3, *(6 for _ in range(256)), 1, 1, 1, 1, 1, 1]
    scores = [0.0] * 258 + [-9.0, -9.0, -9.0, -1.0, -2.0, -3.0]
    backend = build_gguf_tokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": pieces,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.bos_token_id": 1,
        },
        Path("m.gguf"),
    )
    tokenizer = Tokenizer(backend)
    assert [pieces[i] for i in tokenizer.encode("ab aé", add_special_tokens=True)] == [
        "<s>",
        "▁ab",
        "▁a",
        "<0xC3>",
        "<0xA9>",
    ]
    assert tokenizer.decode(tokenizer.encode("ab aé", add_special_tokens=True)) == "ab aé"


def test_a_folder_without_a_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
        load_folder_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"{}", b"", b"[]", b"\xff\xfe", b'{"version": "1.0", "model": {}}'])
def test_a_broken_tokenizer_file_stops_the_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelNotSupported, match=r"tokenizer\.json"):
        load_folder_tokenizer(tmp_path)


def test_training_settings_in_a_tokenizer_file_do_not_cut_prompts(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    backend.enable_truncation(max_length=2)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load_folder_tokenizer(tmp_path).encode("aaaa", add_special_tokens=True) == [0, 0, 0, 0]
