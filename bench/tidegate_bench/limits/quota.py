"""A cgroup with a CPU quota, as a container's CPU limit makes one: version 1 or 2."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PERIOD_US = 100_000  # Kubernetes' own


class NoQuota(Exception):
    """Says why no group with a quota can be made here."""


@contextlib.contextmanager
def cpu_quota(num_cpus: float, root: Path = Path("/sys/fs/cgroup")) -> Iterator[Path]:
    """A group whose processes together get `num_cpus` CPUs' time, for as long as the context lasts.

    Yields:
        The group's folder; processes go into its `cgroup.procs`, and have to be gone before the end.

    Raises:
        NoQuota: the kernel offers none, or not to this user.
    """
    settings = quota_settings(root, num_cpus)
    group = next(iter(settings)).parent
    try:
        group.mkdir()
    except OSError as error:
        raise NoQuota(f"no cgroup can be made in {group.parent}: {error.strerror}") from None
    try:
        for file, text in settings.items():
            try:
                file.write_text(text)
            except OSError as error:
                raise NoQuota(f"{file} cannot be written: {error.strerror}") from None
        yield group
    finally:
        group.rmdir()


def quota_settings(root: Path, num_cpus: float) -> dict[Path, str]:
    """What to write where, in order; all in the folder of one new group.

    Raises:
        NoQuota: there is no controller for it under `root`.
    """
    name, quota_us = f"tidegate-bench-{os.getpid()}", int(num_cpus * PERIOD_US)
    version_1 = root / "cpu"
    if (version_1 / "cpu.cfs_quota_us").exists():
        group = version_1 / name
        return {group / "cpu.cfs_period_us": f"{PERIOD_US}\n", group / "cpu.cfs_quota_us": f"{quota_us}\n"}
    controllers = root / "cgroup.subtree_control"  # version 2: what groups below may limit
    if controllers.exists() and "cpu" in controllers.read_text().split():
        return {root / name / "cpu.max": f"{quota_us} {PERIOD_US}\n"}
    raise NoQuota(f"{root} has no cpu controller for groups below it")
