"""What a run over our engine measured, and what is asked of it."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tidegate_bench.machine import Machine
from tidegate_bench.summary import Spread

AMPLE = "ample memory, as many at once"  # the overload's undisturbed condition
STATIC = "static batching"
NOTHING_ASKED = (AMPLE, STATIC)  # beside the others for comparison: they only have to complete

MEAN_PREEMPTIONS = 1.0  # of a request, at most
MOST_PREEMPTIONS = 4
THROUGHPUT_KEPT = 0.80  # of the run with ample memory, at least
ITL_RATIO = 2.0  # p99 during a long prompt to p99 without it, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadRun:
    """More requests than fit, under one condition, once."""

    condition: str
    repeat: int
    num_requests: int
    num_completed: int
    output_tokens_per_s: float
    num_preemptions: int
    most_preemptions: int  # of one request
    recomputed_tokens: int
    swapped_bytes: int  # out and in
    others: float  # of the CPUs' time, what this process did not take, or the hypervisor did


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPromptRun:
    """One long prompt among decodes, under one target for the time of a step."""

    step_time_target: float  # 0: none
    is_default: bool
    undisturbed_itl_s: Spread
    during_itl_s: Spread  # of the others, from the prompt's arrival to its first token
    num_steps: int  # that the prompt took
    ttft_s: float  # of the prompt
    others: float  # as of an overload

    @property
    def ratio(self) -> float:
        return self.during_itl_s.p99 / self.undisturbed_itl_s.p99

    @property
    def is_kept(self) -> bool:
        return not self.is_default or self.ratio <= ITL_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingCost:
    """Python's part of a step in which nothing is computed; means over the steps."""

    num_running: int
    num_waiting: int
    num_steps: int
    scheduler_s: float  # `schedule` and `update`
    step_s: float  # the engine's whole step, forecast and outputs included


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """The whole of a run; the JSON file holds exactly this."""

    kind: Literal["engine"]
    date: str
    command: str  # makes it again
    versions: Mapping[str, str]
    machine: Machine
    model: str
    dtype: str
    kernels: str
    overload_workload: str  # in a line
    overload_kv_tokens: int  # that the short memory holds
    overload: tuple[OverloadRun, ...]
    num_decodes: int  # beside the long prompt
    num_long_prompt_tokens: int
    long_prompt: tuple[LongPromptRun, ...]
    scheduling: tuple[SchedulingCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """One condition: medians over the repeats, but the worst of what must never happen."""

    condition: str
    output_tokens_per_s: float
    ratio: float | None  # to the run with ample memory; None: that was not run
    mean_preemptions: float  # of a request
    most_preemptions: int  # of one request, in any repeat
    recomputed_tokens: float
    swapped_bytes: float
    num_requests: int
    num_completed: int  # in the worst repeat
    others: float  # in the worst repeat

    @property
    def is_asked(self) -> bool:
        """Whether anything is asked of it beside completing everything."""
        return self.condition not in NOTHING_ASKED

    @property
    def is_kept(self) -> bool:
        if self.num_completed < self.num_requests:
            return False
        return not self.is_asked or (
            self.mean_preemptions <= MEAN_PREEMPTIONS
            and self.most_preemptions <= MOST_PREEMPTIONS
            and (self.ratio is None or self.ratio >= THROUGHPUT_KEPT)
        )


def overloads(run: EngineRun) -> Iterator[Overload]:
    """One for each condition, in the order of their first runs."""
    by_condition: dict[str, list[OverloadRun]] = {}
    for one in run.overload:
        by_condition.setdefault(one.condition, []).append(one)
    ample = by_condition.get(AMPLE)
    ample_speed = _median(ample, lambda one: one.output_tokens_per_s) if ample else None
    for condition, runs in by_condition.items():
        speed = _median(runs, lambda one: one.output_tokens_per_s)
        yield Overload(
            condition=condition,
            output_tokens_per_s=speed,
            ratio=None if ample_speed is None else speed / ample_speed,
            mean_preemptions=_median(runs, lambda one: one.num_preemptions / one.num_requests),
            most_preemptions=max(one.most_preemptions for one in runs),
            recomputed_tokens=_median(runs, lambda one: one.recomputed_tokens),
            swapped_bytes=_median(runs, lambda one: one.swapped_bytes),
            num_requests=runs[0].num_requests,
            num_completed=min(one.num_completed for one in runs),
            others=max(one.others for one in runs),
        )


def _median(runs: Sequence[OverloadRun], of: Callable[[OverloadRun], float]) -> float:
    return statistics.median(of(run) for run in runs)
