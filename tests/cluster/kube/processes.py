"""The cluster's processes: started apart from us, remembered, and only those ended.

A process id alone may by now belong to someone else, so each record also keeps when its process started.
"""

import dataclasses
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.kube.shell import last_line

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process that we started.

    Attributes:
        start_ticks: when it started, in clock ticks since the boot named by `boot_id`.
    """

    name: str
    pid: int
    start_ticks: int
    boot_id: str


def parse_stat(stat: str) -> tuple[str, int]:
    """Read a process's state letter and start time (ticks) from its `/proc/PID/stat` line."""
    # The second field is the command in brackets, and may itself hold blanks and brackets.
    fields = stat.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def is_alive(record: ProcessRecord) -> bool:
    """Whether that very process still runs."""
    if record.boot_id != _BOOT_ID.read_text(encoding="utf-8").strip():
        return False
    try:
        state, start_ticks = parse_stat(Path(f"/proc/{record.pid}/stat").read_text(encoding="utf-8"))
    except (FileNotFoundError, ProcessLookupError):
        return False
    return start_ticks == record.start_ticks and state not in ("Z", "X")


def record_of(name: str, pid: int) -> ProcessRecord | None:
    """Remember a process that runs now; None when it has just ended."""
    try:
        _, start_ticks = parse_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    return ProcessRecord(name, pid, start_ticks, _BOOT_ID.read_text(encoding="utf-8").strip())


class ProcessTable:
    """The processes of one cluster, one record file each."""

    def __init__(self, folder: Path, logs: Path) -> None:
        self._folder = folder
        self._logs = logs

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def records(self) -> list[ProcessRecord]:
        """Every process ever started and not stopped by us, alive or not, by name."""
        if not self._folder.exists():
            return []
        files = sorted(self._folder.glob("*.json"))
        return [ProcessRecord(**json.loads(file.read_text(encoding="utf-8"))) for file in files]

    def is_running(self, name: str) -> bool:
        return any(record.name == name and is_alive(record) for record in self.records())

    def ensure(self, name: str, argv: Sequence[str], netns: str | None = None) -> bool:
        """Start a process unless it runs; returns whether it was started now.

        Args:
            netns: network namespace to start in. nsenter, because `ip netns exec` remounts /sys and so hides the
                cgroups from the kubelet.
        """
        if self.is_running(name):
            return False
        self._folder.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        entered = ["nsenter", f"--net=/run/netns/{netns}"] if netns else []
        with self.log(name).open("ab") as out:
            process = subprocess.Popen(
                [*entered, *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        record = record_of(name, process.pid)
        assert record is not None  # not reaped yet, so its /proc entry is there even if it has ended
        (self._folder / f"{name}.json").write_text(json.dumps(dataclasses.asdict(record)), encoding="utf-8")
        process.returncode = 0  # it outlives us on purpose: no warning about that from the interpreter
        return True

    def last_words(self, name: str) -> str:
        """The last line of a process's log."""
        log = self.log(name)
        return last_line(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else "no log"

    def forget_ended(self) -> None:
        """Drop the records of processes that have ended, before they are started again."""
        for record in self.records():
            if not is_alive(record):
                (self._folder / f"{record.name}.json").unlink(missing_ok=True)

    def first_ended(self) -> str | None:
        """One process that has ended by itself, with its last words; None while all run."""
        for record in self.records():
            if not is_alive(record):
                return f"{record.name} ended: {self.last_words(record.name)} (log: {self.log(record.name)})"
        return None

    def stop(self, names: Iterable[str], grace_s: float) -> None:
        """End these processes: asked first, forced after `grace_s` seconds."""
        wanted = set(names)
        records = [record for record in self.records() if record.name in wanted]
        end_processes(records, grace_s)
        for record in records:
            (self._folder / f"{record.name}.json").unlink(missing_ok=True)


def end_processes(records: Sequence[ProcessRecord], grace_s: float) -> None:
    """Send SIGTERM to all, wait for them together, then SIGKILL to those left."""
    handles = [handle for record in records if (handle := _open(record)) is not None]
    try:
        left = _signal_and_wait(handles, signal.SIGTERM, grace_s) if grace_s > 0 else handles
        _signal_and_wait(left, signal.SIGKILL, 10.0)
    finally:
        for handle in handles:
            os.close(handle)


def _open(record: ProcessRecord) -> int | None:
    """A handle that stays with the process, whatever happens to its id; None when it is gone."""
    try:
        handle = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return None
    if is_alive(record):  # checked after opening: the handle cannot move to another process any more
        return handle
    os.close(handle)
    return None


def _signal_and_wait(handles: Sequence[int], number: signal.Signals, timeout_s: float) -> list[int]:
    for handle in handles:
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + timeout_s
    left = list(handles)
    while left and (wait_s := deadline - time.monotonic()) > 0:
        ended, _, _ = select.select(left, [], [], wait_s)
        left = [handle for handle in left if handle not in ended]
    return left
