"""What a comparison measured, and the medians over its repeats."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tidegate_bench.machine import CpuShare, Machine
from tidegate_bench.roofline import Roofline
from tidegate_bench.summary import Spread, Summary


@dataclass(frozen=True, slots=True)
class ServerStart:
    """One start of one server and what it held in memory until it was stopped."""

    server: str
    version: str
    kernels: str  # that it chose on this machine; empty where it does not tell
    turn: int
    kv_tokens: int
    ready_s: float
    peak_rss_bytes: int  # of the whole process tree
    pss_bytes: int  # after the last workload


@dataclass(frozen=True, slots=True)
class WorkloadRun:
    """One workload, run once against one server."""

    server: str
    workload: str
    turn: int
    repeat: int
    summary: Summary
    cpu: CpuShare | None  # None: the server runs elsewhere


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The machine's limit for one workload; None where arrivals set the pace."""

    workload: str
    output_tokens_per_s: float | None
    decode_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The whole of a run; the JSON file holds exactly this."""

    kind: Literal["workloads"]
    date: str
    command: str  # makes it again
    model: str
    dtype: str
    machine: Machine
    roofline: Roofline | None
    ceilings: tuple[Ceiling, ...]
    starts: tuple[ServerStart, ...]
    runs: tuple[WorkloadRun, ...]


def median_summary(summaries: Sequence[Summary]) -> Summary:
    """The median of each number by itself; failures are added up, and the worst lag is kept.

    Raises:
        statistics.StatisticsError: no summaries.
    """
    return Summary(
        num_requests=sum(summary.num_requests for summary in summaries),
        num_failed=sum(summary.num_failed for summary in summaries),
        num_prompt_tokens=sum(summary.num_prompt_tokens for summary in summaries),
        num_output_tokens=sum(summary.num_output_tokens for summary in summaries),
        duration_s=statistics.median(summary.duration_s for summary in summaries),
        output_tokens_per_s=statistics.median(summary.output_tokens_per_s for summary in summaries),
        decode_tokens_per_s=_median(summary.decode_tokens_per_s for summary in summaries),
        ttft_s=_median_spread(summary.ttft_s for summary in summaries),
        tpot_s=_median_spread(summary.tpot_s for summary in summaries),
        itl_s=_median_spread(summary.itl_s for summary in summaries),
        e2e_s=_median_spread(summary.e2e_s for summary in summaries),
        generator_lag_s=max(summary.generator_lag_s for summary in summaries),
        errors=tuple(dict.fromkeys(error for summary in summaries for error in summary.errors)),
    )


def _median(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def _median_spread(spreads: Iterable[Spread | None]) -> Spread | None:
    present = [spread for spread in spreads if spread is not None]
    if not present:
        return None
    return Spread(
        p50=statistics.median(spread.p50 for spread in present),
        p99=statistics.median(spread.p99 for spread in present),
    )
