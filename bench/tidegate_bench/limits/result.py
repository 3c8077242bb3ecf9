"""What a run over the pod's bounds measured, and each bound with whether it is kept."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tidegate_bench.machine import Machine

READY_S = 6.0
MEMORY_BYTES = 1_200_000_000  # beyond the KV cache
PYTHON_SHARE: Mapping[int, float] = {1: 0.10, 64: 0.05}  # of a decode step, by the requests in it
ALLOWED_LOSS = 0.20  # of what the CPUs that are left would give

UNDISTURBED = "undisturbed"


@dataclass(frozen=True, slots=True)
class Start:
    """One undisturbed start of the pod."""

    kernels: str  # that it chose on this machine
    ready_s: float  # to the end of its first completion
    others: float  # of the CPUs' time, what neither pod nor load generator took, or the hypervisor did


@dataclass(frozen=True, slots=True)
class PodMemory:
    """Of all the pod's processes together."""

    kv_bytes: int  # of the whole KV cache
    kv_resident_bytes: int  # of it, those that a token was written to by the end of the burst
    loading_peak_bytes: int  # resident, each process's own peak until it was ready: no KV among them
    serving_bytes: int  # resident after a burst, shared pages once

    @property
    def beyond_kv_bytes(self) -> int:
        return max(self.loading_peak_bytes, self.serving_bytes - self.kv_resident_bytes)


@dataclass(frozen=True, slots=True)
class PythonShare:
    """Of decode steps with one number of requests; medians over the steps."""

    num_requests: int
    num_steps: int
    step_s: float  # from one run of the model to the next
    outside_s: float  # of it, outside the C library
    api_cpu: float  # of all CPUs, what the API process took meanwhile
    others: float  # as of a start

    @property
    def share(self) -> float:
        return self.outside_s / self.step_s


@dataclass(frozen=True, slots=True)
class ConfinedRun:
    """One workload under one condition, once."""

    condition: str
    workload: str
    repeat: int
    output_tokens_per_s: float
    share_left: float  # of the CPUs' time, what the condition leaves to the pod
    others: float  # as of a start; our own neighbour is not among them


@dataclass(frozen=True, slots=True)
class LimitsRun:
    """The whole of a run; the JSON file holds exactly this."""

    kind: Literal["limits"]
    date: str
    command: str  # makes it again
    versions: Mapping[str, str]
    machine: Machine
    serve_arguments: tuple[str, ...]  # beside the defaults
    starts: tuple[Start, ...]
    memory: PodMemory | None
    python: tuple[PythonShare, ...]
    confined: tuple[ConfinedRun, ...]
    not_measured: tuple[str, ...]  # a sentence on each thing that this machine does not allow to be measured


@dataclass(frozen=True, slots=True)
class Bound:
    """One promise, as measured."""

    what: str
    measured: str
    allowed: str
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Throughput:
    """One workload under one condition: medians over the repeats."""

    workload: str
    condition: str
    output_tokens_per_s: float
    ratio: float  # to the same workload undisturbed
    share_left: float
    others: float  # the worst of the repeats

    @property
    def floor(self) -> float:
        """The ratio that is asked for."""
        return self.share_left * (1 - ALLOWED_LOSS)

    @property
    def is_kept(self) -> bool:
        return self.condition == UNDISTURBED or self.ratio >= self.floor


def bounds(run: LimitsRun) -> Iterator[Bound]:
    """Start, memory and Python's share, those that were measured."""
    if run.starts:
        ready_s = statistics.median(start.ready_s for start in run.starts)
        yield Bound("ready, median of the starts", f"{ready_s:.1f} s", f"{READY_S:.0f} s", ready_s <= READY_S)
    if run.memory is not None:
        memory = run.memory
        yield Bound(
            f"memory beyond {memory.kv_bytes / (1 << 30):.1f} GiB of KV: loading or serving, whichever is more",
            f"{memory.loading_peak_bytes / 1e9:.2f} or "
            f"{(memory.serving_bytes - memory.kv_resident_bytes) / 1e9:.2f} GB",
            f"{MEMORY_BYTES / 1e9:.1f} GB",
            memory.beyond_kv_bytes <= MEMORY_BYTES,
        )
    for python in run.python:
        allowed = PYTHON_SHARE[python.num_requests]
        yield Bound(
            f"Python's share of a decode step, {python.num_requests} "
            f"{'request' if python.num_requests == 1 else 'requests'}",
            f"{python.share:.1%}: {python.outside_s * 1e3:.2f} of {python.step_s * 1e3:.1f} ms",
            f"{allowed:.0%}",
            python.share <= allowed,
        )


def throughputs(run: LimitsRun) -> Iterator[Throughput]:
    """For each workload the undisturbed run, then each condition beside it."""
    for workload in dict.fromkeys(one.workload for one in run.confined):
        by_condition: dict[str, list[ConfinedRun]] = {}
        for one in run.confined:
            if one.workload == workload:
                by_condition.setdefault(one.condition, []).append(one)
        undisturbed = _median(by_condition[UNDISTURBED], lambda one: one.output_tokens_per_s)
        for condition, runs in by_condition.items():
            speed = _median(runs, lambda one: one.output_tokens_per_s)
            yield Throughput(
                workload=workload,
                condition=condition,
                output_tokens_per_s=speed,
                ratio=speed / undisturbed,
                share_left=_median(runs, lambda one: one.share_left),
                others=max(one.others for one in runs),
            )


def _median(runs: Sequence[ConfinedRun], of: Callable[[ConfinedRun], float]) -> float:
    return statistics.median(of(run) for run in runs)
