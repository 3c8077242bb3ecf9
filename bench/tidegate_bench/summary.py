"""Records of one run to the numbers that get compared."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate_bench.record import RequestRecord


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and tail of one quantity."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One workload, run once. Times are seconds; None where no request gave the quantity."""

    num_requests: int
    num_failed: int
    num_prompt_tokens: int
    num_output_tokens: int
    duration_s: float  # start of the workload to the last event
    output_tokens_per_s: float
    decode_tokens_per_s: float | None  # of one stream, 1 / median TPOT
    ttft_s: Spread | None
    tpot_s: Spread | None
    itl_s: Spread | None
    e2e_s: Spread | None
    generator_lag_s: float  # most that a request left the load generator late
    errors: tuple[str, ...]  # distinct, in order of appearance


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, interpolated between neighbours.

    Raises:
        ValueError: no values, or not within 0 to 100.
    """
    if not values or not 0 <= percent <= 100:
        raise ValueError(f"percentile {percent} of {len(values)} values")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def summarise(records: Sequence[RequestRecord]) -> Summary:
    """Failed requests count as failed and nowhere else, except that the run lasts until the last one ended."""
    served = [record for record in records if record.error is None]
    failed = [record for record in records if record.error is not None]
    duration_s = max((record.end_s for record in records), default=0.0)
    num_output_tokens = sum(record.num_output_tokens for record in served)
    tpot_s = _spread([tpot for record in served if (tpot := record.tpot_s) is not None])
    return Summary(
        num_requests=len(records),
        num_failed=len(failed),
        num_prompt_tokens=sum(record.num_prompt_tokens for record in served),
        num_output_tokens=num_output_tokens,
        duration_s=duration_s,
        output_tokens_per_s=num_output_tokens / duration_s if duration_s > 0 else 0.0,
        decode_tokens_per_s=1 / tpot_s.p50 if tpot_s is not None and tpot_s.p50 > 0 else None,
        ttft_s=_spread([record.ttft_s for record in served]),
        tpot_s=tpot_s,
        itl_s=_spread([gap for record in served for gap in record.itl_s]),
        e2e_s=_spread([record.e2e_s for record in served]),
        generator_lag_s=max((record.sent_s - record.arrival_s for record in records), default=0.0),
        errors=tuple(dict.fromkeys(record.error for record in failed if record.error is not None)),
    )


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread(percentile(values, 50), percentile(values, 99)) if values else None
