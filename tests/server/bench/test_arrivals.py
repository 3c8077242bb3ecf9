import itertools

import pytest

from tidegate_server.bench.arrivals import arrival_times


def test_without_a_rate_all_arrive_at_once() -> None:
    assert arrival_times(3, None, None, seed=0) == [0.0, 0.0, 0.0]


def test_poisson_arrivals_have_exponential_gaps_of_the_asked_mean() -> None:
    times = arrival_times(20_000, 4.0, None, seed=1)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 4.0, rel=0.03)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance == pytest.approx(mean**2, rel=0.06)  # an exponential's deviation is its mean


def test_without_a_number_all_that_arrive_within_the_duration_are_taken() -> None:
    times = arrival_times(None, 10.0, 5.0, seed=0)
    assert max(times) < 5.0
    assert times == arrival_times(len(times), 10.0, None, seed=0)
    assert arrival_times(len(times) + 1, 10.0, None, seed=0)[-1] >= 5.0


def test_times_depend_on_the_seed_alone() -> None:
    assert arrival_times(5, 1.0, None, seed=3) == arrival_times(5, 1.0, None, seed=3)
    assert arrival_times(5, 1.0, None, seed=3) != arrival_times(5, 1.0, None, seed=4)
