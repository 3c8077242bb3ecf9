"""One control group per node, in every hierarchy that this host has: version 1, version 2, or both at once."""

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.kube.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where the control groups are mounted.

    Attributes:
        v1: one folder per version 1 hierarchy.
        v2: the version 2 hierarchy; on a mixed host it has no controllers.
    """

    v1: tuple[Path, ...]
    v2: Path | None

    @property
    def all(self) -> tuple[Path, ...]:
        return self.v1 if self.v2 is None else (*self.v1, self.v2)


def parse_hierarchies(mounts: str) -> Hierarchies:
    """Read the hierarchies from `/proc/mounts`."""
    fields = [line.split() for line in mounts.splitlines()]
    v1 = tuple(dict.fromkeys(Path(field[1]) for field in fields if field[2] == "cgroup"))
    v2 = [Path(field[1]) for field in fields if field[2] == "cgroup2"]
    return Hierarchies(v1, v2[0] if v2 else None)


def hierarchies() -> Hierarchies:
    return parse_hierarchies(Path("/proc/mounts").read_text(encoding="utf-8"))


def ensure_cgroup(name: str) -> None:
    """Make a node's group, ready for the kubelet to put pods in.

    Raises:
        ClusterError: this host has no control groups, or does not let us use them.
    """
    found = hierarchies()
    if not found.all:
        raise ClusterError(
            "no cgroups are mounted; start on a host (or a privileged container) that has /sys/fs/cgroup"
        )
    try:
        if not found.v1 and found.v2 is not None:
            _delegate(found.v2)
        for root in found.all:
            (root / name).mkdir(exist_ok=True)
        for root in found.v1:
            _fill_cpuset(root, root / name)
    except OSError as error:
        raise ClusterError(
            f"cannot make the cgroup {name}: {error}; this needs root and a writable /sys/fs/cgroup"
        ) from error


def remove_cgroup(name: str, timeout_s: float = 10.0) -> None:
    """End whatever still runs in a node's group, and remove it with its children."""
    roots = [root / name for root in hierarchies().all if (root / name).exists()]
    deadline = time.monotonic() + timeout_s
    while roots and time.monotonic() < deadline:
        for pid in {pid for root in roots for pid in _members(root)}:
            _kill(pid)
        roots = [root for root in roots if not _remove_tree(root)]
        if roots:
            time.sleep(0.1)


def _delegate(root: Path) -> None:
    """Version 2: children of the root only get the controllers that the root hands down."""
    offered = (root / "cgroup.controllers").read_text(encoding="utf-8").split()
    wanted = [name for name in ("cpu", "cpuset", "memory", "io", "pids", "hugetlb") if name in offered]
    (root / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted), encoding="utf-8")


def _fill_cpuset(root: Path, group: Path) -> None:
    """Version 1: a new cpuset is empty, and nothing can run in an empty one."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (group / name).exists() and not (group / name).read_text(encoding="utf-8").strip():
            (group / name).write_text((root / name).read_text(encoding="utf-8"), encoding="utf-8")


def _members(root: Path) -> Iterable[int]:
    for folder, _, files in os.walk(root):
        if "cgroup.procs" in files:
            yield from (int(pid) for pid in (Path(folder) / "cgroup.procs").read_text(encoding="utf-8").split())


def _kill(pid: int) -> None:
    # 0 stands for a process outside our process namespace; as an argument of kill it would mean ourselves.
    if pid > 1:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def _remove_tree(root: Path) -> bool:
    for folder, _, _ in os.walk(root, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            return False
    return True
