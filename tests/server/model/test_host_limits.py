"""CPU and memory limits of a container, read from trees like the kernel's."""

from pathlib import Path

import pytest

from tidegate_server.model.host_limits import HostFiles, available_memory_bytes, usable_cpus

GIB = 1 << 30


def host(tmp_path: Path, cgroup: str, tree: dict[str, str]) -> HostFiles:
    files = HostFiles(cgroup=tmp_path / "cgroup", proc=tmp_path / "proc")
    content = {"proc/self/cgroup": cgroup, "proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {16 * GIB // 1024} kB\n"}
    for name, text in (content | {f"cgroup/{name}": text for name, text in tree.items()}).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return files


@pytest.mark.parametrize(
    ("cgroup", "tree", "expected"),
    [
        pytest.param("0::/\n", {}, 8, id="no limit files"),
        pytest.param("0::/\n", {"cpu.max": "max 100000\n"}, 8, id="version 2, no limit"),
        pytest.param("0::/\n", {"cpu.max": "200000 100000\n"}, 2, id="version 2, two CPUs"),
        pytest.param("0::/\n", {"cpu.max": "150000 100000\n"}, 2, id="version 2, one and a half"),
        pytest.param("0::/\n", {"cpu.max": "10000 100000\n"}, 1, id="version 2, a tenth"),
        pytest.param("0::/\n", {"cpu.max": "9900000 100000\n"}, 8, id="version 2, more than there are"),
        pytest.param(
            "0::/pods/a\n", {"pods/a/cpu.max": "max 100000", "pods/cpu.max": "300000 100000"}, 3, id="a parent's limit"
        ),
        pytest.param("0::/on/the/host\n", {"cpu.max": "400000 100000"}, 4, id="a path that only the host sees"),
        pytest.param(
            "3:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"}, 3, id="v1"
        ),
        pytest.param(
            "3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8, id="version 1, no limit"
        ),
    ],
)
def test_threads_stay_within_the_cpu_limit(tmp_path: Path, cgroup: str, tree: dict[str, str], expected: int) -> None:
    assert usable_cpus(host(tmp_path, cgroup, tree), affinity=8) == expected


@pytest.mark.parametrize(
    ("cgroup", "tree", "expected"),
    [
        pytest.param("0::/\n", {}, 16 * GIB, id="no limit: what the machine has"),
        pytest.param("0::/\n", {"memory.max": "max", "memory.current": "5"}, 16 * GIB, id="version 2, no limit"),
        pytest.param(
            "0::/\n", {"memory.max": str(4 * GIB), "memory.current": str(GIB)}, 3 * GIB, id="version 2, limit less use"
        ),
        pytest.param(
            "0::/\n",
            {"memory.max": str(4 * GIB), "memory.current": str(2 * GIB), "memory.stat": f"anon 1\ninactive_file {GIB}"},
            3 * GIB,
            id="version 2, file cache can go",
        ),
        pytest.param(
            "0::/\n",
            {"memory.max": str(2 * GIB), "memory.current": str(2 * GIB - 9), "memory.stat": f"active_file {GIB}"},
            GIB + 9,
            id="version 2, file cache can go even when it was read twice",
        ),
        pytest.param(
            "0::/a\n",
            {"a/memory.max": "max", "memory.max": str(GIB), "memory.current": "0"},
            GIB,
            id="a parent's limit",
        ),
        pytest.param(
            "9:memory:/\n",
            {
                "memory/memory.limit_in_bytes": str(2 * GIB),
                "memory/memory.usage_in_bytes": str(GIB),
                "memory/memory.stat": f"total_active_file {GIB // 4}\ntotal_inactive_file {GIB // 4}",
            },
            GIB + GIB // 2,
            id="version 1",
        ),
        pytest.param("0::/\n", {"memory.max": "100", "memory.current": "200"}, 0, id="over the limit is nothing left"),
    ],
)
def test_memory_stays_within_the_limit(tmp_path: Path, cgroup: str, tree: dict[str, str], expected: int) -> None:
    assert available_memory_bytes(host(tmp_path, cgroup, tree)) == expected


def test_this_machine_has_some_of_both() -> None:
    assert usable_cpus() >= 1
    assert available_memory_bytes() > 0
