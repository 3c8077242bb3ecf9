"""Only what we started is ever ended: claims on real, small processes."""

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.kube.processes import ProcessTable, end_processes, is_alive, parse_stat, record_of

SLEEPS = [sys.executable, "-c", "import signal; signal.pause()"]
IGNORES_SIGTERM = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()",
]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEPS) as process:
        yield process
        process.kill()


def test_stat_of_a_command_with_blanks_and_brackets_is_read() -> None:
    fields = " ".join(str(number) for number in range(4, 22))
    assert parse_stat(f"17 (a) b (c)) S {fields} 4711 0 0") == ("S", 4711)


def test_started_process_is_found_again_by_another_table(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path / "processes", tmp_path / "logs")
    assert table.ensure("sleeper", SLEEPS)
    try:
        again = ProcessTable(tmp_path / "processes", tmp_path / "logs")
        assert again.is_running("sleeper")
        assert not again.ensure("sleeper", SLEEPS)
    finally:
        table.stop(["sleeper"], grace_s=5)
    assert table.records() == []


def test_process_deaf_to_sigterm_is_ended_all_the_same(tmp_path: Path) -> None:
    with subprocess.Popen(IGNORES_SIGTERM, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"deaf\n"
        record = record_of("deaf", process.pid)
        assert record is not None
        end_processes([record], grace_s=0.1)
        assert process.wait() == -9


def test_reused_process_id_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    record = record_of("sleeper", sleeper.pid)
    assert record is not None
    earlier = dataclasses.replace(record, start_ticks=record.start_ticks - 1)
    end_processes([earlier], grace_s=0)
    assert not is_alive(earlier)
    assert is_alive(record)
    assert sleeper.poll() is None


def test_record_of_an_earlier_boot_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    record = record_of("sleeper", sleeper.pid)
    assert record is not None
    assert not is_alive(dataclasses.replace(record, boot_id="another"))


def test_ended_process_shows_its_last_words(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path / "processes", tmp_path / "logs")
    table.ensure("speaker", [sys.executable, "-c", "print('no such flag')"])
    (record,) = table.records()
    end_processes([record], grace_s=10)  # waits for its end; SIGTERM may come first, so no claim on the words yet
    table.log("speaker").write_text("first\nno such flag\n\n", encoding="utf-8")
    assert table.first_ended() == f"speaker ended: no such flag (log: {table.log('speaker')})"
    assert not table.is_running("speaker")
    table.forget_ended()
    assert table.first_ended() is None
