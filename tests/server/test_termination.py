"""The termination message that Kubernetes and the operator read."""

import json
from pathlib import Path

from tidegate_server.termination import MAX_BYTES, leave_message


def test_the_reason_is_left_where_kubernetes_made_the_file(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    path.touch()
    leave_message(path, "ModelNotFound", "there is no “model”")
    assert json.loads(path.read_text(encoding="utf-8")) == {"code": "ModelNotFound", "message": "there is no “model”"}


def test_outside_kubernetes_nothing_is_written(tmp_path: Path) -> None:
    leave_message(tmp_path / "termination-log", "ModelNotFound", "gone")
    assert not (tmp_path / "termination-log").exists()


def test_a_long_reason_stays_a_whole_document(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    path.touch()
    leave_message(path, "EngineCrashed", "€" * 100_000)
    assert len(path.read_bytes()) <= MAX_BYTES
    assert json.loads(path.read_text(encoding="utf-8"))["code"] == "EngineCrashed"


def test_bytes_of_a_file_name_that_are_no_text_are_spelled_out(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    path.touch()
    leave_message(path, "ModelNotFound", "no \udcff")
    assert json.loads(path.read_text(encoding="utf-8"))["message"] == "no \udcff"


def test_a_path_that_cannot_be_one_stops_nothing() -> None:
    leave_message(Path("/" + "m" * 300), "ModelNotFound", "gone")
