"""When recordings are written."""

from collections import Counter
from pathlib import Path

import pytest

from tests.server.engine.recordings import HEAD
from tidegate_server.engine.faults import FaultKind
from tidegate_server.engine.recorder import Recorder
from tidegate_server.engine.recording import read_recording
from tidegate_server.engine.recording_writer import RecordingWriter, check_directory, write_first_hung_step
from tidegate_server.engine.snapshot import EngineSnapshot
from tidegate_server.errors import InvalidSetting


def reasons(directory: Path) -> list[str]:
    return sorted(read_recording(path).head.because for path in directory.iterdir())


def test_the_first_fault_of_each_kind_is_written_and_no_other(tmp_path: Path) -> None:
    faults: Counter[FaultKind] = Counter()
    writer = RecordingWriter(str(tmp_path), HEAD, Recorder(4), faults)
    writer.write_first_faults()
    assert reasons(tmp_path) == []
    for kind in (FaultKind.REQUEST, FaultKind.REQUEST, FaultKind.OUT_OF_MEMORY, FaultKind.REQUEST):
        faults[kind] += 1
        writer.write_first_faults()
    assert reasons(tmp_path) == ["out_of_memory", "request"]


def test_what_was_asked_for_goes_where_it_was_said(tmp_path: Path) -> None:
    writer = RecordingWriter(str(tmp_path), HEAD, Recorder(4), Counter())
    writer.write("asked", tmp_path / "here.jsonl")
    assert read_recording(tmp_path / "here.jsonl").head.because == "asked"


def test_the_first_step_that_hangs_is_written(tmp_path: Path) -> None:
    writer = RecordingWriter(str(tmp_path), HEAD, Recorder(4), Counter())
    seen = [EngineSnapshot(progress_at_s=1.0), EngineSnapshot(progress_at_s=2.0, step_bound_s=30.0)]
    waited: list[float] = []
    write_first_hung_step(writer, lambda: seen[len(waited) >= 10], waited.append)
    assert reasons(tmp_path) == ["hung_step"]
    assert sum(waited) == 10 + 30


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    RecordingWriter(None, HEAD, Recorder(0), Counter({FaultKind.STEP: 1})).write_first_faults()
    assert list(tmp_path.iterdir()) == []


def test_a_full_or_missing_disk_does_not_stop_the_engine(tmp_path: Path) -> None:
    RecordingWriter(str(tmp_path / "gone"), HEAD, Recorder(4), Counter()).write("asked")


def test_a_folder_that_is_none_stops_the_start(tmp_path: Path) -> None:
    check_directory(None)
    check_directory(str(tmp_path))
    with pytest.raises(InvalidSetting, match=r"--record-dir: .*/gone is no folder that this server may write to"):
        check_directory(str(tmp_path / "gone"))
