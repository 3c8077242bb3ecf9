import pytest

from tidegate_server.engine.moving_average import MovingAverage


def test_nothing_yet_is_zero() -> None:
    assert MovingAverage(10).value == 0.0


def test_the_first_values_count_alike() -> None:
    average = MovingAverage(10)
    for value in (9.0, 1.0, 2.0):
        average.add(value)
    assert average.value == pytest.approx(4.0)


def test_old_values_fade() -> None:
    average = MovingAverage(10)
    average.add(1000.0)
    for _ in range(200):
        average.add(1.0)
    assert average.value == pytest.approx(1.0, abs=1e-4)
