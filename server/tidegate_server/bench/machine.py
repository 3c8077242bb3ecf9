"""The facts of this machine and its software that a number needs beside it."""

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("tidegate", "torch", "triton", "transformers", "numpy")


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the load came from, and where our engine ran if it was that which was measured."""

    cpu: str
    num_cpus: int  # that this process may use
    memory_bytes: int
    gpus: tuple[str, ...]
    system: str


def describe_machine(proc: Path = Path("/proc")) -> Machine:
    cpu = re.search(r"^model name\s*:\s*(.+)$", _read(proc / "cpuinfo"), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s+(\d+) kB", _read(proc / "meminfo"), re.MULTILINE)
    gpus = [
        match[1]
        for file in sorted(proc.glob("driver/nvidia/gpus/*/information"))
        if (match := re.search(r"^Model:\s*(.+)$", _read(file), re.MULTILINE))
    ]
    return Machine(
        cpu=cpu[1] if cpu else platform.machine(),
        num_cpus=len(os.sched_getaffinity(0)),
        memory_bytes=int(memory[1]) * 1024 if memory else 0,
        gpus=tuple(gpus),
        system=platform.platform(),
    )


def software_versions() -> Mapping[str, str]:
    """Versions of Python, of ours, and of what computes."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # triton where there is no GPU, or ourselves in a source tree
            continue
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
