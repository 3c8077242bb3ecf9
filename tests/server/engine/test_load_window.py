import pytest

from tidegate_server.engine.load_window import QueueTimeWindow, percentile


def test_nobody_queued_is_zero() -> None:
    assert QueueTimeWindow().p90_s([], now=5.0) == 0.0


def test_those_who_still_wait_count_with_their_age() -> None:
    window = QueueTimeWindow()
    for _ in range(8):
        window.record(0.01, now=100.0)
    assert window.p90_s([], now=101.0) == 0.01
    assert window.p90_s([94.0, 95.0], now=101.0) == 6.0


def test_admissions_older_than_the_window_are_forgotten() -> None:
    window = QueueTimeWindow(window_s=15.0)
    window.record(9.0, now=100.0)
    window.record(1.0, now=110.0)
    assert window.p90_s([], now=114.9) == 9.0
    assert window.p90_s([], now=115.0) == 1.0
    assert window.p90_s([], now=200.0) == 0.0


@pytest.mark.parametrize(
    ("values", "expected"), [([], 0.0), ([3.0], 3.0), ([2.0, 1.0], 2.0), ([float(n) for n in range(1, 11)], 9.0)]
)
def test_the_percentile_is_one_of_the_values(values: list[float], expected: float) -> None:
    assert percentile(values, 0.9) == expected
