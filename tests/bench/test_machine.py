import pytest

from tidegate_bench.machine import CpuClock, cpu_share, describe_machine, read_cpu_clock


def test_this_machine_has_a_name_cores_and_memory() -> None:
    machine = describe_machine()
    assert machine.cpu
    assert machine.num_cpus >= 1
    assert machine.memory_bytes > 0


def test_foreign_share_is_what_neither_server_nor_generator_used() -> None:
    before = CpuClock(busy_s=100.0, steal_s=5.0, server_s=20.0, generator_s=1.0, wall_s=0.0)
    after = CpuClock(busy_s=116.0, steal_s=7.0, server_s=30.0, generator_s=2.0, wall_s=10.0)
    share = cpu_share(before, after, num_cpus=2)
    assert share.server == pytest.approx(0.5)
    assert share.generator == pytest.approx(0.05)
    assert share.foreign == pytest.approx(0.25)
    assert share.steal == pytest.approx(0.1)


def test_rounding_never_gives_a_negative_share() -> None:
    before = CpuClock(busy_s=100.0, steal_s=0.0, server_s=20.0, generator_s=0.0, wall_s=0.0)
    after = CpuClock(busy_s=109.0, steal_s=0.0, server_s=29.5, generator_s=0.0, wall_s=10.0)
    assert cpu_share(before, after, num_cpus=1).foreign == 0.0


def test_clock_moves_forward() -> None:
    first, second = read_cpu_clock(None, 0.0), read_cpu_clock(None, 1.0)
    assert second.busy_s >= first.busy_s
    assert second.generator_s >= first.generator_s
