"""Recordings on disk."""

import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.server.engine.recordings import HEAD
from tests.server.engine.test_replay import busy, record
from tidegate_server.engine.recording import (
    InvalidRecording,
    Recording,
    read_recording,
    recording_path,
    write_recording,
)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    recording = record(busy(0))
    write_recording(recording, tmp_path / "r.jsonl")
    assert read_recording(tmp_path / "r.jsonl") == recording
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    write_recording(Recording(HEAD, ()), tmp_path / "r.jsonl")
    assert stat.S_IMODE((tmp_path / "r.jsonl").stat().st_mode) == 0o600


def test_a_name_says_when_and_why() -> None:
    path = recording_path("/records", "asked", datetime(2026, 5, 4, 3, 2, 1, 500, tzinfo=UTC))
    assert path == Path("/records/tidegate-20260504T030201.000500Z-asked.jsonl")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is no recording"),
        ("{}", "it is no recording"),
        ('{"type":"head","format":2}', "it has format 2; this version reads format 1"),
        ('{"type":"head","format":1}', "it is no recording: .*version"),
        ("\x80", "it is no recording"),
    ],
    ids=["empty", "another document", "of another format", "without its fields", "no text"],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidRecording, match=words):
        read_recording(path)


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_recording(record(busy(0)), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidRecording):
        read_recording(path)
