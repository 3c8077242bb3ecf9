"""GGUF headers: what a good file holds, and that every bad one gives one line."""

import contextlib
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.server.model.gguf_writing import small_tensors, write_gguf
from tidegate_server.errors import ModelNotFound, ModelNotSupported, StartError
from tidegate_server.gguf_file import open_gguf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fields = {
        "tokenizer.ggml.tokens": ["<s>", "a", "ünïcode", ""],
        "tokenizer.ggml.scores": [0.5, -1.0, 2.0, 0.0],
        "tokenizer.ggml.eos_token_id": 2,
        "general.name": "small",
    }
    return write_gguf(tmp_path / "small.gguf", small_tensors(), fields)


def test_metadata_agrees_with_the_gguf_package(path: Path) -> None:
    ours = open_gguf(path)
    theirs = gguf.GGUFReader(path)
    for name, field in theirs.fields.items():
        if not name.startswith("GGUF."):
            assert ours.metadata[name] == field.contents(), name


def test_tensors_agree_with_the_gguf_package(path: Path) -> None:
    ours = open_gguf(path)
    theirs = {t.name: t for t in gguf.GGUFReader(path).tensors}
    assert set(ours.tensors) == set(theirs)
    for name, tensor in ours.tensors.items():
        assert tensor.shape == tuple(reversed(theirs[name].shape.tolist()))
        values = np.frombuffer(ours.tensor_bytes(tensor), dtype=np.float32)
        np.testing.assert_array_equal(values, theirs[name].data.reshape(-1))


def test_every_truncation_of_a_header_gives_one_line(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in (*range(0, 600, 7), len(whole) // 2, len(whole) - 40):
        cut.write_bytes(whole[:length])
        with pytest.raises(StartError) as caught:
            open_gguf(cut)
        assert "\n" not in str(caught.value)


def test_a_file_that_lost_its_end_says_how_much_is_missing(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[:-200])
    with pytest.raises(ModelNotFound, match=rf"truncated: {len(whole) - 200} bytes of at least"):
        open_gguf(cut)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_header_gives_an_answer_or_a_start_error(path: Path, tmp_path: Path, seed: int) -> None:
    content = bytearray(path.read_bytes())
    random = np.random.default_rng(seed)
    for position in random.integers(4, 1200, size=20):
        content[position] = random.integers(256)
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(content)
    with contextlib.suppress(StartError):  # any other exception fails the test
        open_gguf(damaged)


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        pytest.param(b"ggml....", ModelNotSupported, "does not start with GGUF", id="another format"),
        pytest.param(b"GGUF" + struct.pack("<I", 1), ModelNotSupported, "version 1", id="an old version"),
        pytest.param(b"GGUF" + struct.pack(">I", 3), ModelNotSupported, "little-endian", id="big-endian"),
        pytest.param(b"GGUF", ModelNotFound, "truncated", id="the magic alone"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(
    tmp_path: Path, content: bytes, error: type[StartError], words: str
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(error, match=words):
        open_gguf(path)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="No such file"):
        open_gguf(tmp_path / "none.gguf")
