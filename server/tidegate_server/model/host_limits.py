"""What this process may use of its machine: CPUs and memory, under cgroup version 1 or 2."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostFiles:
    """Where the kernel tells; tests put a tree of their own here."""

    cgroup: Path = Path("/sys/fs/cgroup")
    proc: Path = Path("/proc")


def usable_cpus(files: HostFiles | None = None, affinity: int | None = None) -> int:
    """Threads that can run at once: the smaller of the allowed CPUs and the container's CPU limit, at least one.

    More threads than the limit would be stopped together whenever the limit's period is used up.
    """
    files = files or HostFiles()
    limits = [affinity if affinity is not None else len(os.sched_getaffinity(0))]
    for folder in _own_folders(files, controller=""):  # version 2
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            limits.append(math.ceil(int(quota) / int(period)))
    for folder in _own_folders(files, controller="cpu"):  # version 1, where no limit is a quota of -1
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():
            limits.append(math.ceil(int(quota) / int(period)))
    return max(1, min(limits))


def available_memory_bytes(files: HostFiles | None = None) -> int:
    """Bytes that can still be allocated without swapping, or being killed for passing the container's limit.

    File cache that the kernel can drop counts as available.
    """
    files = files or HostFiles()
    available = [_meminfo_available(files)]
    for folder in _own_folders(files, controller=""):
        limit, used = _read(folder / "memory.max"), _read(folder / "memory.current")
        if limit.isdigit() and used.isdigit():
            available.append(int(limit) - int(used) + _file_cache_bytes(folder, prefix=""))
    for folder in _own_folders(files, controller="memory"):
        limit, used = _read(folder / "memory.limit_in_bytes"), _read(folder / "memory.usage_in_bytes")
        if limit.isdigit() and used.isdigit():
            available.append(int(limit) - int(used) + _file_cache_bytes(folder, prefix="total_"))
    return max(0, min(available))


def _own_folders(files: HostFiles, controller: str) -> Iterator[Path]:
    """This process's cgroup and its parents, up to the root: each one's limit holds.

    In a container the path in /proc may be the host's, of which only the root is to be seen; it is always yielded.

    Args:
        controller: of version 1; empty for version 2.
    """
    root = files.cgroup / controller if controller else files.cgroup
    path = ""
    for line in _read(files.proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, line_path = rest.partition(":")
        if controller in controllers.split(","):
            path = line_path.strip("/")
    own = root / path
    while own != root and root in own.parents:
        yield own
        own = own.parent
    yield root


def _read(path: Path) -> str:
    """A small file's text; empty when it is not there, as a missing controller sets no limit."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _file_cache_bytes(folder: Path, prefix: str) -> int:
    """Pages the kernel can drop, used lately or not: reading a checkpoint twice makes all of it "active"."""
    return sum(_stat(folder / "memory.stat", f"{prefix}{name}_file") for name in ("active", "inactive"))


def _stat(path: Path, key: str) -> int:
    for line in _read(path).splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.isdigit():
            return int(value)
    return 0


def _meminfo_available(files: HostFiles) -> int:
    for line in _read(files.proc / "meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
