from dataclasses import replace

import pytest

from tests.bench.limits.runs import GB, SMALL, confined, limits_run
from tidegate_bench.limits.result import UNDISTURBED, PodMemory, PythonShare, bounds, throughputs


def test_ready_is_the_median_of_the_starts() -> None:
    assert [bound.is_kept for bound in bounds(limits_run(ready_s=(5.0, 30.0, 5.9)))] == [True]
    assert [bound.is_kept for bound in bounds(limits_run(ready_s=(6.1,)))] == [False]


@pytest.mark.parametrize(
    ("memory", "is_kept"),
    [
        pytest.param(SMALL, True, id="small"),
        pytest.param(replace(SMALL, serving_bytes=2 * GB + GB // 2), False, id="too much while serving"),
        pytest.param(replace(SMALL, loading_peak_bytes=GB + GB // 2), False, id="too much while loading"),
        pytest.param(replace(SMALL, serving_bytes=3 * GB, kv_resident_bytes=2 * GB), True, id="it is the cache"),
    ],
)
def test_memory_is_what_the_pod_holds_beyond_its_kv_cache(memory: PodMemory, is_kept: bool) -> None:
    assert [bound.is_kept for bound in bounds(limits_run(memory=memory))] == [is_kept]


@pytest.mark.parametrize(
    ("num_requests", "outside_s", "is_kept"),
    [(1, 0.009, True), (1, 0.011, False), (64, 0.004, True), (64, 0.006, False)],
)
def test_pythons_share_has_a_bound_for_each_number_of_requests(
    num_requests: int, outside_s: float, is_kept: bool
) -> None:
    python = PythonShare(num_requests, num_steps=50, step_s=0.1, outside_s=outside_s, api_cpu=0.1, others=0.0)
    [bound] = bounds(limits_run(python=[python]))
    assert bound.is_kept is is_kept


def test_what_was_not_measured_has_no_bound() -> None:
    assert list(bounds(limits_run())) == []


def test_throughput_is_held_against_four_fifths_of_the_cpu_that_is_left() -> None:
    run = limits_run(
        confined(tokens_per_s=100.0),
        confined("one CPU", 41.0, share_left=0.5),
        confined("quota", 59.0, share_left=0.75),
    )
    base, one, quota = throughputs(run)
    assert (base.condition, base.ratio, base.is_kept) == (UNDISTURBED, 1.0, True)
    assert (one.ratio, one.floor) == pytest.approx((0.41, 0.4))
    assert (quota.ratio, quota.floor) == pytest.approx((0.59, 0.6))
    assert (one.is_kept, quota.is_kept) == (True, False)


def test_throughput_is_the_median_of_the_repeats() -> None:
    run = limits_run(
        *(confined(tokens_per_s=speed, repeat=i) for i, speed in enumerate((100.0, 5.0, 102.0))),
        *(confined("one CPU", speed, repeat=i, share_left=0.5) for i, speed in enumerate((50.0, 80.0, 60.0))),
    )
    assert [line.output_tokens_per_s for line in throughputs(run)] == [100.0, 60.0]


def test_each_workload_is_compared_with_itself() -> None:
    run = limits_run(
        confined(tokens_per_s=100.0),
        confined(tokens_per_s=10.0, workload="W4"),
        confined("one CPU", 50.0, share_left=0.5),
        confined("one CPU", 10.0, workload="W4", share_left=0.5),
    )
    assert [(line.workload, line.ratio) for line in throughputs(run)] == [
        ("W1", 1.0),
        ("W1", 0.5),
        ("W4", 1.0),
        ("W4", 1.0),
    ]
