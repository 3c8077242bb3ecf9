"""What a process may use is read from the kernel's files, whichever cgroup version they are of."""

from pathlib import Path

import pytest

from tidegate_server.model.host_limits import HostFiles, available_memory_bytes, usable_cpus

GIB = 1024**3


def host(folder: Path, files: dict[str, str]) -> HostFiles:
    """A kernel that shows these files, on a machine with 64 GiB free."""
    for name, text in {"proc/meminfo": f"MemAvailable: {64 * GIB // 1024} kB\n", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return HostFiles(cgroup=folder / "cgroup", proc=folder / "proc")


VERSION_1 = {
    "proc/self/cgroup": "5:memory:/\n4:cpu,cpuacct:/\n",
    "cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
    "cgroup/memory/memory.usage_in_bytes": f"{2 * GIB - 1000}\n",
    "cgroup/memory/memory.stat": f"total_active_file {GIB}\ntotal_inactive_file 500\n",
    "cgroup/cpu/cpu.cfs_quota_us": "150000\n",
    "cgroup/cpu/cpu.cfs_period_us": "100000\n",
}
VERSION_2 = {
    "proc/self/cgroup": "0::/\n",
    "cgroup/memory.max": f"{2 * GIB}\n",
    "cgroup/memory.current": f"{2 * GIB - 1000}\n",
    "cgroup/memory.stat": f"active_file {GIB}\ninactive_file 500\n",
    "cgroup/cpu.max": "150000 100000\n",
}


@pytest.mark.parametrize("files", [VERSION_1, VERSION_2], ids=["version 1", "version 2"])
def test_file_cache_of_a_checkpoint_just_read_does_not_count_as_used(tmp_path: Path, files: dict[str, str]) -> None:
    assert available_memory_bytes(host(tmp_path, files)) == GIB + 1000 + 500


@pytest.mark.parametrize("files", [VERSION_1, VERSION_2], ids=["version 1", "version 2"])
def test_a_quota_of_one_and_a_half_cpus_lets_two_threads_run(tmp_path: Path, files: dict[str, str]) -> None:
    assert usable_cpus(host(tmp_path, files), affinity=8) == 2


def test_without_a_limit_the_whole_machine_is_available(tmp_path: Path) -> None:
    files = host(
        tmp_path, {"proc/self/cgroup": "0::/\n", "cgroup/memory.max": "max\n", "cgroup/cpu.max": "max 100000\n"}
    )
    assert available_memory_bytes(files) == 64 * GIB
    assert usable_cpus(files, affinity=8) == 8
