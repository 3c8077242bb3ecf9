import pytest

from tests.server.bench.records import record
from tidegate_server.bench.engine_sample import EngineSample
from tidegate_server.bench.record import Outcome
from tidegate_server.bench.summary import Distribution, distribution, percentile, summarise


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 50, 7.0),
        ([7.0], 99, 7.0),
        ([1.0, 2.0], 50, 1.5),
        ([0.0, 10.0], 0, 0.0),
        ([0.0, 10.0], 100, 10.0),
        ([float(value) for value in range(101)], 99, 99.0),
    ],
)
def test_a_percentile_interpolates_between_neighbours(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == pytest.approx(expected)


def test_a_distribution_does_not_mind_the_order_and_is_none_of_nothing() -> None:
    assert distribution([11.0, 1.0, 6.0]) == Distribution(mean=6.0, p50=6.0, p90=10.0, p99=10.9)
    assert distribution([]) is None


def test_throughput_is_over_the_whole_duration() -> None:
    summary = summarise([record(), record(1, end_s=6.0, num_output_tokens=9)], 2, duration_s=6.0)
    assert summary.requests_per_s == pytest.approx(2 / 6)
    assert summary.input_tokens_per_s == pytest.approx(20 / 6)
    assert summary.output_tokens_per_s == pytest.approx(12 / 6)


def test_a_failed_request_counts_as_failed_and_nowhere_else() -> None:
    failed = record(1, tokens_at_s=(0.1, 9.0), num_output_tokens=2, end_s=9.0, error="HTTP 500")
    summary = summarise([record(), failed, failed], 3, duration_s=9.0)
    assert (summary.num_finished, summary.num_failed) == (1, 2)
    assert (summary.num_prompt_tokens, summary.num_output_tokens) == (10, 3)
    assert summary.ttft_s == distribution([1.0])
    assert summary.e2e_s == distribution([3.0])
    assert summary.errors == {"HTTP 500": 2}


def test_an_unfinished_request_counts_as_far_as_it_came() -> None:
    cut = record(1, tokens_at_s=(2.0,), num_output_tokens=1, end_s=4.0, outcome=Outcome.UNFINISHED)
    waiting = record(2, tokens_at_s=(), num_output_tokens=0, end_s=4.0, outcome=Outcome.UNFINISHED)
    summary = summarise([record(), cut, waiting], 5, duration_s=4.0)
    assert (summary.num_finished, summary.num_unfinished, summary.num_unsent) == (1, 2, 2)
    assert summary.num_output_tokens == 4
    assert summary.num_prompt_tokens == 20  # the one that waits has had no prompt computed for all we know
    assert summary.ttft_s == distribution([1.0, 2.0])
    assert summary.e2e_s == distribution([3.0])
    assert summary.requests_per_s == pytest.approx(1 / 4)


def test_the_most_frequent_error_comes_first() -> None:
    records = [record(error="a"), record(error="b"), record(error="b")]
    assert list(summarise(records, 3, duration_s=1.0).errors.items()) == [("b", 2), ("a", 1)]


def test_nothing_measured_is_a_summary_without_times() -> None:
    summary = summarise([], 4, duration_s=0.0)
    assert (summary.num_unsent, summary.output_tokens_per_s, summary.ttft_s, summary.engine) == (4, 0.0, None, None)


def test_the_delay_of_the_load_generator_is_told() -> None:
    summary = summarise([record(), record(arrival_s=1.0, sent_s=1.25)], 2, duration_s=3.0)
    assert summary.max_send_delay_s == pytest.approx(0.25)


def test_the_engines_samples_are_summarised_beside_the_requests() -> None:
    engine = summarise([record()], 1, 3.0, [EngineSample(at_s=0.0, num_running=1)]).engine
    assert engine is not None
    assert engine.peak_running == 1
