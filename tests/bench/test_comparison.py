from tests.bench.comparisons import summary
from tidegate_bench.comparison import median_summary
from tidegate_bench.summary import Spread


def test_median_is_taken_number_by_number() -> None:
    median = median_summary([summary(90.0, ttft_ms=70), summary(110.0, ttft_ms=50), summary(100.0, ttft_ms=60)])
    assert median.output_tokens_per_s == 100.0
    assert median.ttft_s == Spread(0.06, 0.12)
    assert median.tpot_s is None


def test_failures_are_added_up_and_never_averaged_away() -> None:
    median = median_summary([summary(), summary(failed=2), summary()])
    assert (median.num_failed, median.num_requests) == (2, 12)
    assert median.errors == ("HTTP 500",)
