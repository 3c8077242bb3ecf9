"""A comparison as Markdown."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tidegate_bench.comparison import Ceiling, Comparison, WorkloadRun, median_summary
from tidegate_bench.facts import GB, MB, NOISY_SHARE, facts, is_noisy
from tidegate_bench.machine import CpuShare
from tidegate_bench.summary import Spread, Summary
from tidegate_bench.table import markdown_table


@dataclass(frozen=True, slots=True)
class Column:
    """One quantity of a workload, as it stands in a table."""

    title: str
    value: Callable[[Summary], float | None]
    scale: float = 1.0
    decimals: int = 0


def _p50(spread: Spread | None) -> float | None:
    return spread.p50 if spread is not None else None


def _p99(spread: Spread | None) -> float | None:
    return spread.p99 if spread is not None else None


COLUMNS: Sequence[Column] = (
    Column("output tok/s", lambda summary: summary.output_tokens_per_s, decimals=1),
    Column("decode tok/s", lambda summary: summary.decode_tokens_per_s, decimals=1),
    Column("TTFT p50 ms", lambda summary: _p50(summary.ttft_s), scale=1000),
    Column("TTFT p99 ms", lambda summary: _p99(summary.ttft_s), scale=1000),
    Column("TPOT p50 ms", lambda summary: _p50(summary.tpot_s), scale=1000, decimals=1),
    Column("TPOT p99 ms", lambda summary: _p99(summary.tpot_s), scale=1000, decimals=1),
    Column("ITL p99 ms", lambda summary: _p99(summary.itl_s), scale=1000, decimals=1),
    Column("E2E p50 ms", lambda summary: _p50(summary.e2e_s), scale=1000),
)


def to_markdown(comparison: Comparison) -> str:
    """Facts of the machine, one table of the servers, one of the workloads with the ratio to the first server."""
    parts = ["\n".join(_facts(comparison))]
    if comparison.starts:
        parts.append(markdown_table(_START_HEADER, list(_start_rows(comparison))))
    parts.append(markdown_table(_workload_header(), list(_workload_rows(comparison))))
    parts.extend(_notes(comparison))
    return "\n\n".join(parts) + "\n"


def _facts(comparison: Comparison) -> Iterator[str]:
    roofline = comparison.roofline
    versions = {start.server: start.version for start in comparison.starts}
    yield from facts(comparison.date, comparison.command, comparison.machine, versions)
    yield f"- model: {comparison.model}, {comparison.dtype}"
    if roofline is not None:
        yield (
            f"- limits, measured with torch {roofline.torch}: reads {roofline.read_bytes_per_s / GB:.1f} GB/s, "
            f"{comparison.dtype} GEMM {roofline.gemm_flop_per_s / GB:.0f} GFLOP/s"
        )


_START_HEADER = ("server", "version", "kernels", "ready after s", "peak memory MB (RSS)", "memory MB (PSS)")


def _start_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    for server in dict.fromkeys(start.server for start in comparison.starts):
        # The starts with the most room for KV, the ones a user would make; a start for W5 is smaller on purpose.
        own = [start for start in comparison.starts if start.server == server]
        ample = max(start.kv_tokens for start in own)
        starts = [start for start in own if start.kv_tokens == ample]
        yield (
            server,
            starts[0].version,
            starts[0].kernels,
            f"{statistics.median(start.ready_s for start in starts):.1f}",
            f"{max(start.peak_rss_bytes for start in starts) / MB:.0f}",
            f"{statistics.median(start.pss_bytes for start in starts) / MB:.0f}",
        )


def _workload_header() -> tuple[str, ...]:
    return ("workload", "server", *(column.title for column in COLUMNS), "failed", "others' CPU", "steal")


def _workload_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """For each workload: a line a server, then a line of ratios to each server after the first, then the limit."""
    servers = _servers(comparison)
    ceilings = {ceiling.workload: ceiling for ceiling in comparison.ceilings}
    for workload in dict.fromkeys(run.workload for run in comparison.runs):
        medians: dict[str, Summary] = {}
        for server in servers:
            runs = [run for run in comparison.runs if (run.server, run.workload) == (server, workload)]
            if runs:
                medians[server] = median_summary([run.summary for run in runs])
                yield _server_row(workload, server, medians[server], runs)
        first, *others = medians
        for other in others:
            yield _ratio_row(workload, first, other, medians)
        if workload in ceilings:
            yield _ceiling_row(ceilings[workload])


def _server_row(workload: str, server: str, summary: Summary, runs: Sequence[WorkloadRun]) -> tuple[str, ...]:
    shares = [run.cpu for run in runs if run.cpu is not None]
    return (
        workload,
        server,
        *(_number(column, column.value(summary)) for column in COLUMNS),
        f"{summary.num_failed}/{summary.num_requests}",
        _worst(shares, lambda share: share.foreign),
        _worst(shares, lambda share: share.steal),
    )


def _ratio_row(workload: str, first: str, other: str, medians: dict[str, Summary]) -> tuple[str, ...]:
    def ratio(column: Column) -> str:
        ours, theirs = column.value(medians[first]), column.value(medians[other])
        return f"{ours / theirs:.2f}x" if ours is not None and theirs else ""

    return (workload, f"{first} / {other}", *(ratio(column) for column in COLUMNS), "", "", "")


def _ceiling_row(ceiling: Ceiling) -> tuple[str, ...]:
    known = {"output tok/s": ceiling.output_tokens_per_s, "decode tok/s": ceiling.decode_tokens_per_s}
    cells = (f"≤ {value:.0f}" if (value := known.get(column.title)) is not None else "" for column in COLUMNS)
    return (ceiling.workload, "the machine's limit", *cells, "", "", "")


def _notes(comparison: Comparison) -> Iterator[str]:
    noisy = [run for run in comparison.runs if run.cpu is not None and is_noisy(run.cpu)]
    if noisy:
        yield (
            f"**{len(noisy)} of {len(comparison.runs)} runs were disturbed**: others used, or the hypervisor took, "
            f"more than {NOISY_SHARE:.0%} of the CPUs. Repeat on a quiet machine before quoting a number."
        )
    for error in dict.fromkeys(
        f"{run.server}, {run.workload}: {e}" for run in comparison.runs for e in run.summary.errors
    ):
        yield f"failed: {error}"


def _servers(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(run.server for run in comparison.runs))


def _number(column: Column, value: float | None) -> str:
    return "" if value is None else f"{value * column.scale:.{column.decimals}f}"


def _worst(shares: Sequence[CpuShare], of: Callable[[CpuShare], float]) -> str:
    return f"{max(of(share) for share in shares):.0%}" if shares else ""
