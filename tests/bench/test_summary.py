import pytest

from tidegate_bench.record import RequestRecord
from tidegate_bench.summary import Spread, percentile, summarise


def record(
    index: int = 0,
    *,
    arrival_s: float = 0.0,
    sent_s: float = 0.0,
    events: tuple[float, ...] = (1.0, 2.0, 3.0),
    end_s: float = 3.0,
    tokens: int = 3,
    error: str | None = None,
) -> RequestRecord:
    return RequestRecord(index, arrival_s, sent_s, events, end_s, 10, tokens, error)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 50, 7.0),
        ([7.0], 99, 7.0),
        ([1.0, 2.0], 50, 1.5),
        ([3.0, 1.0, 2.0], 50, 2.0),
        ([0.0, 10.0], 0, 0.0),
        ([0.0, 10.0], 100, 10.0),
        ([float(value) for value in range(101)], 99, 99.0),
    ],
)
def test_percentile_interpolates_between_neighbours(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == pytest.approx(expected)


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], -1), ([1.0], 101)])
def test_percentile_of_nothing_or_beyond_the_scale_is_refused(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, percent)


def test_times_count_from_the_planned_arrival_not_from_the_sending() -> None:
    late = record(arrival_s=0.5, sent_s=0.9)
    summary = summarise([late])
    assert late.ttft_s == 0.5
    assert late.e2e_s == 2.5
    assert summary.generator_lag_s == pytest.approx(0.4)


def test_tpot_is_a_mean_over_tokens_while_itl_is_over_events() -> None:
    # Four tokens in three events: one event carried two.
    one = record(events=(1.0, 2.0, 4.0), end_s=4.0, tokens=4)
    assert one.tpot_s == pytest.approx(1.0)
    assert one.itl_s == (1.0, 2.0)


def test_single_token_has_no_tpot() -> None:
    summary = summarise([record(events=(1.0,), end_s=1.0, tokens=1)])
    assert summary.tpot_s is None
    assert summary.decode_tokens_per_s is None
    assert summary.itl_s is None
    assert summary.ttft_s == Spread(1.0, 1.0)


def test_throughput_is_served_tokens_over_the_whole_duration() -> None:
    summary = summarise([record(end_s=3.0), record(1, end_s=6.0, tokens=9)])
    assert summary.duration_s == 6.0
    assert summary.output_tokens_per_s == pytest.approx(12 / 6)


def test_failed_requests_count_as_failed_and_nowhere_else() -> None:
    failed = record(1, events=(), end_s=9.0, tokens=0, error="HTTP 500")
    summary = summarise([record(), failed, failed])
    assert (summary.num_requests, summary.num_failed) == (3, 2)
    assert summary.num_output_tokens == 3
    assert summary.errors == ("HTTP 500",)
    assert summary.ttft_s == Spread(1.0, 1.0)
    assert summary.duration_s == 9.0


def test_nothing_served_is_a_summary_without_times() -> None:
    summary = summarise([record(events=(), tokens=0, error="refused")])
    assert summary.output_tokens_per_s == 0.0
    assert summary.ttft_s is None
    assert summary.e2e_s is None
