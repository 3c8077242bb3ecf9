from pathlib import Path

import pytest

from tidegate_bench.limits.step_times import Step, decode_times, read_steps, write_steps


def steps(*kinds: tuple[int, int], step_s: float = 1.0, library_s: float = 0.75) -> list[Step]:
    """One after the other: (requests, new tokens) of each."""
    return [
        Step(index * step_s, library_s, num_requests, num_new_tokens)
        for index, (num_requests, num_new_tokens) in enumerate(kinds)
    ]


def test_a_step_lasts_until_the_next_one_begins() -> None:
    times = decode_times(steps((4, 4), (4, 4), (4, 4), step_s=2.0, library_s=1.5), 4)
    assert times is not None
    assert (times.num_steps, times.step_s, times.outside_s) == (2, 2.0, 0.5)


def test_prefills_and_other_numbers_of_requests_are_left_out() -> None:
    # A decode step that a prefill follows counts neither: what comes between belongs to another batch.
    kinds = [(4, 100), (4, 4), (4, 4), (4, 20), (4, 4), (3, 3), (3, 3), (4, 4)]
    times = decode_times(steps(*kinds), 4)
    assert times is not None
    assert times.num_steps == 1


def test_no_such_steps_give_nothing() -> None:
    assert decode_times(steps((1, 1), (1, 50), (1, 1)), 1) is None
    assert decode_times([], 1) is None


def test_a_disturbed_step_is_outvoted() -> None:
    slow = [*steps((1, 1), (1, 1), (1, 1)), Step(9.0, 0.75, 1, 1), Step(10.0, 0.75, 1, 1)]
    times = decode_times(slow, 1)
    assert times is not None
    assert times.step_s == pytest.approx(1.0)


def test_steps_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = steps((1, 30), (1, 1))
    write_steps(written, tmp_path / "steps.json")
    assert read_steps(tmp_path / "steps.json") == written
