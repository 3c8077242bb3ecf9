"""Mounts below a folder, which containers and volumes leave there."""

import re
from pathlib import Path

from tests.cluster.kube.shell import succeeds


def mounts_below(folder: Path, mountinfo: str) -> list[str]:
    """Mount points at or below a folder, the innermost first, from the text of `/proc/self/mountinfo`."""
    points = [_unescape(line.split()[4]) for line in mountinfo.splitlines()]
    prefix = str(folder)
    found = [point for point in points if point == prefix or point.startswith(prefix + "/")]
    return sorted(found, reverse=True)


def unmount_below(folder: Path) -> None:
    """Unmount everything below a folder; lazily, so that a last reader does not hold it up."""
    mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    for point in mounts_below(folder, mountinfo):
        succeeds(["umount", "--lazy", point])


def _unescape(point: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)
