"""The memory of a pod's processes, and how much of it is the KV cache, read from /proc."""

import re
from dataclasses import dataclass
from pathlib import Path

_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ (\d+)\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Mapping:
    """One range of a process's memory."""

    name: str  # the file, or empty
    size_bytes: int
    resident_bytes: int


def parse_smaps(text: str) -> list[Mapping]:
    """The ranges of /proc/<pid>/smaps, in order."""
    found: list[Mapping] = []
    name, size_bytes = "", 0
    for line in text.splitlines():
        if match := _MAPPING.match(line):
            name = match[2]
        elif line.startswith("Size:"):
            size_bytes = _bytes(line)
        elif line.startswith("Rss:"):
            found.append(Mapping(name, size_bytes, _bytes(line)))
    return found


def resident_kv_bytes(mappings: list[Mapping], kv_bytes: int) -> int:
    """Of a KV cache of `kv_bytes`, what is surely resident: it lies in the largest range without a file.

    The kernel may have joined the range with neighbours; all of theirs is taken for resident.
    """
    candidates = [mapping for mapping in mappings if not mapping.name and mapping.size_bytes >= kv_bytes]
    if not candidates:
        return 0
    largest = max(candidates, key=lambda mapping: mapping.size_bytes)
    return max(0, largest.resident_bytes - (largest.size_bytes - kv_bytes))


def read_mappings(pid: int, proc: Path = Path("/proc")) -> list[Mapping]:
    return parse_smaps((proc / str(pid) / "smaps").read_text())


def peak_resident_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """The most that a living process ever had resident."""
    for line in (proc / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return _bytes(line)
    return 0


def _bytes(line: str) -> int:
    return int(line.split()[1]) * 1024
