"""The engine at one moment of a run, and what a run's moments say together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSample:
    """Gauges and counters at one moment; None: not told. Counters count since the engine started."""

    at_s: float  # after the start of the run
    num_running: int | None = None
    num_waiting: int | None = None
    kv_usage_ratio: float | None = None  # share of the KV blocks that requests hold, 0 to 1
    num_kv_blocks: int | None = None
    preemptions: Mapping[str, int] | None = None  # by kind
    prefix_query_tokens: int | None = None
    prefix_hit_tokens: int | None = None

    @property
    def kv_blocks_used(self) -> int | None:
        if self.kv_usage_ratio is None or self.num_kv_blocks is None:
            return None
        return round(self.kv_usage_ratio * self.num_kv_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSummary:
    """The engine over a run; None: not told."""

    preemptions: Mapping[str, int] | None
    prefix_query_tokens: int | None
    prefix_hit_tokens: int | None
    peak_kv_usage_ratio: float | None
    peak_kv_blocks: int | None
    num_kv_blocks: int | None
    peak_running: int | None
    peak_waiting: int | None

    @property
    def prefix_hit_ratio(self) -> float | None:
        """Prompt tokens found in the prefix cache, of those looked up."""
        if self.prefix_hit_tokens is None or not self.prefix_query_tokens:
            return None
        return self.prefix_hit_tokens / self.prefix_query_tokens


def summarise_engine(samples: Sequence[EngineSample]) -> EngineSummary | None:
    """Peaks of the gauges, growth of the counters; None without samples."""
    if not samples:
        return None
    first, last = samples[0], samples[-1]
    return EngineSummary(
        preemptions=preemptions_since(first, last),
        prefix_query_tokens=_growth(first.prefix_query_tokens, last.prefix_query_tokens),
        prefix_hit_tokens=_growth(first.prefix_hit_tokens, last.prefix_hit_tokens),
        peak_kv_usage_ratio=_peak([sample.kv_usage_ratio for sample in samples]),
        peak_kv_blocks=_peak([sample.kv_blocks_used for sample in samples]),
        num_kv_blocks=last.num_kv_blocks,
        peak_running=_peak([sample.num_running for sample in samples]),
        peak_waiting=_peak([sample.num_waiting for sample in samples]),
    )


def preemptions_since(first: EngineSample, later: EngineSample) -> Mapping[str, int] | None:
    """Preemptions by kind between two moments."""
    if first.preemptions is None or later.preemptions is None:
        return None
    return {kind: count - first.preemptions.get(kind, 0) for kind, count in later.preemptions.items()}


def _growth(first: int | None, last: int | None) -> int | None:
    return None if first is None or last is None else last - first


def _peak(values: Sequence[Number | None]) -> Number | None:
    return max((value for value in values if value is not None), default=None)
