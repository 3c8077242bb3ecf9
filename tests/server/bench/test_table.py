from tests.server.bench.records import record
from tidegate_server.bench.engine_sample import EngineSample
from tidegate_server.bench.record import Outcome
from tidegate_server.bench.summary import Summary, summarise
from tidegate_server.bench.table import render_table

SAMPLES = [
    EngineSample(
        at_s=0.0, num_running=0, num_waiting=0, kv_usage_ratio=0.0, num_kv_blocks=128,
        preemptions={"recompute": 0, "swap": 0}, prefix_query_tokens=0, prefix_hit_tokens=0,
    ),
    EngineSample(
        at_s=1.0, num_running=8, num_waiting=56, kv_usage_ratio=0.75, num_kv_blocks=128,
        preemptions={"recompute": 3, "swap": 0}, prefix_query_tokens=800, prefix_hit_tokens=200,
    ),
]  # fmt: skip


def rendered(summary: Summary) -> str:
    return render_table(summary, "range: 3 requests", "a model, cpu", "complete")


def test_a_whole_run_as_its_table() -> None:
    assert rendered(summarise([record(), record(1, end_s=4.0)], 2, 4.0, SAMPLES)) == (
        "workload              range: 3 requests\n"
        "target                a model, cpu\n"
        "duration              4.00 s, complete\n"
        "requests              2 finished, 0 failed\n"
        "\n"
        "throughput                requests/s   input tok/s  output tok/s\n"
        "                                0.50          5.00          1.50\n"
        "\n"
        "ms                          mean       p50       p90       p99\n"
        "TTFT                      1000.0    1000.0    1000.0    1000.0\n"
        "TPOT                      1000.0    1000.0    1000.0    1000.0\n"
        "ITL                       1000.0    1000.0    1000.0    1000.0\n"
        "end to end                3500.0    3500.0    3900.0    3990.0\n"
        "\n"
        "preemptions           3 recompute\n"
        "prefix-cache hits     25.0% of 800 prompt tokens\n"
        "peak KV blocks        96 of 128 (75.0%)\n"
        "peak running, waiting 8, 56\n"
        "sending delay         0.0 ms at most\n"
        "errors                none\n"
    )


def test_what_is_unknown_is_a_dash() -> None:
    table = rendered(summarise([], 0, 0.0))
    assert "TTFT                           -         -         -         -\n" in table
    for name in ("preemptions", "prefix-cache hits", "peak KV blocks", "peak running, waiting"):
        assert f"{name:22}-\n" in table


def test_a_usage_without_a_number_of_blocks_is_a_share() -> None:
    table = rendered(summarise([], 0, 1.0, [EngineSample(at_s=0.0, kv_usage_ratio=0.5)]))
    assert "peak KV blocks        50.0%\n" in table


def test_no_preemption_is_a_zero() -> None:
    assert "preemptions           0\n" in rendered(summarise([], 0, 1.0, SAMPLES[:1]))


def test_errors_are_counted_and_told_in_lines_of_their_own() -> None:
    records = [record(error="HTTP 503"), record(error="HTTP 503"), record(error="ReadError")]
    assert rendered(summarise(records, 3, 1.0)).endswith(
        "errors                2 x HTTP 503\n                      1 x ReadError\n"
    )


def test_a_run_that_was_cut_says_what_is_missing() -> None:
    summary = summarise([record(), record(outcome=Outcome.UNFINISHED)], 5, 1.0)
    assert "requests              1 finished, 0 failed, 1 unfinished, 3 not sent\n" in rendered(summary)
