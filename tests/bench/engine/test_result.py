import pytest

from tests.bench.engine.runs import engine_run, long_prompt, overload
from tidegate_bench.engine.result import AMPLE, STATIC, OverloadRun, overloads


def test_a_condition_is_the_median_of_its_repeats_beside_the_run_with_ample_memory() -> None:
    run = engine_run(
        *(overload("tail", speed, repeat=repeat) for repeat, speed in enumerate((90.0, 5.0, 85.0))),
        *(overload(AMPLE, speed, repeat=repeat) for repeat, speed in enumerate((100.0, 101.0, 7.0))),
    )
    assert [(line.condition, line.output_tokens_per_s, line.ratio) for line in overloads(run)] == [
        ("tail", 85.0, 0.85),
        (AMPLE, 100.0, 1.0),
    ]


def test_what_must_never_happen_counts_in_any_repeat() -> None:
    [line] = overloads(engine_run(overload("tail"), overload("tail", most_preemptions=5, num_completed=63)))
    assert (line.most_preemptions, line.num_completed) == (5, 63)


@pytest.mark.parametrize(
    ("one", "is_kept"),
    [
        pytest.param(overload("tail", 80.0), True, id="four fifths of the throughput"),
        pytest.param(overload("tail", 79.0), False, id="less than four fifths"),
        pytest.param(overload("tail", num_preemptions=64, most_preemptions=4), True, id="as many as are allowed"),
        pytest.param(overload("tail", num_preemptions=65), False, id="more than one a request"),
        pytest.param(overload("tail", most_preemptions=5), False, id="one request five times"),
        pytest.param(overload("tail", num_completed=63), False, id="one request is lost"),
        pytest.param(overload(STATIC, 20.0), True, id="a baseline may be slow"),
        pytest.param(overload(STATIC, num_completed=63), False, id="but loses nothing"),
    ],
)
def test_each_demand_counts(one: OverloadRun, is_kept: bool) -> None:
    first, _ = overloads(engine_run(one, overload(AMPLE, 100.0)))
    assert first.is_kept is is_kept


def test_without_a_run_with_ample_memory_there_is_no_ratio() -> None:
    [line] = overloads(engine_run(overload("tail", 1.0)))
    assert (line.ratio, line.is_kept) == (None, True)


@pytest.mark.parametrize(
    ("p99_s", "is_default", "is_kept"), [(0.2, True, True), (0.21, True, False), (1.0, False, True)]
)
def test_gaps_are_held_against_the_undisturbed_ones_with_the_default_target(
    p99_s: float, is_default: bool, is_kept: bool
) -> None:
    assert long_prompt(2.0, p99_s, is_default=is_default).is_kept is is_kept
