"""The workloads of `tidegate bench`: requests with exact lengths and times of arrival.

A prompt is a row of named segments, and only those are kept: the token ids of a long trace would fill the memory. The
same options give the same requests on every machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import assert_never

from tidegate_server.bench.arrivals import arrival_times
from tidegate_server.bench.traces import TRACE_BLOCK_TOKENS, TraceEntry


class WorkloadKind(StrEnum):
    FIXED = "fixed"  # every prompt and every output has the same length
    RANGE = "range"  # lengths drawn uniformly
    SHARED_PREFIX = "shared-prefix"  # one of a few prefixes, then tokens of its own
    TRACE = "trace"  # lengths, times and shared prefixes of recorded requests
    OVERLOAD = "overload"  # more at once than the KV cache holds


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Least and most tokens, both included."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """What to draw. Of a trace the lengths are its own, and the times too unless there is a rate."""

    kind: WorkloadKind
    prompt_tokens: LengthRange  # of shared-prefix: what follows the prefix
    output_tokens: LengthRange
    num_requests: int | None = None  # None: all that arrive within the duration, or all of a trace
    num_prefixes: int = 4
    prefix_tokens: int = 512
    rate_per_s: float | None = None  # mean of Poisson arrivals; None: all at once, or a trace's own times
    speed_up: float = 1.0  # a trace's times are divided by it
    max_prompt_tokens: int | None = None  # longer prompts of a trace are cut
    max_output_tokens: int | None = None
    duration_s: float | None = None  # what arrives later is left out
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of prompt tokens. Under one seed, segments of one name begin with the same tokens."""

    name: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One completion to ask for, `arrival_s` after the start."""

    index: int
    arrival_s: float
    segments: tuple[Segment, ...]
    num_output_tokens: int

    @property
    def num_prompt_tokens(self) -> int:
        return sum(segment.num_tokens for segment in self.segments)


def build_workload(options: WorkloadOptions, trace: Sequence[TraceEntry] = ()) -> tuple[PlannedRequest, ...]:
    """Draw the requests, in order of arrival.

    Args:
        trace: for `WorkloadKind.TRACE` only.
    """
    match options.kind:
        case WorkloadKind.TRACE:
            requests = _trace_requests(options, trace[: options.num_requests])
        case WorkloadKind.SHARED_PREFIX:
            requests = _shared_prefix_requests(options)
        case WorkloadKind.FIXED | WorkloadKind.RANGE | WorkloadKind.OVERLOAD:
            requests = _independent_requests(options)
        case _:
            assert_never(options.kind)
    return tuple(
        request for request in requests if options.duration_s is None or request.arrival_s < options.duration_s
    )


def describe_workload(options: WorkloadOptions, requests: Sequence[PlannedRequest]) -> str:
    """A workload in one line."""
    match options.kind:
        case WorkloadKind.TRACE:
            cuts = (("in", options.max_prompt_tokens), ("out", options.max_output_tokens))
            lengths = " ".join(
                ["lengths as recorded", *(f"but {most} {way} at most" for way, most in cuts if most is not None)]
            )
        case WorkloadKind.SHARED_PREFIX:
            lengths = (
                f"{options.num_prefixes} prefixes of {options.prefix_tokens} tokens, {options.prompt_tokens} more in, "
                f"{options.output_tokens} out"
            )
        case WorkloadKind.FIXED | WorkloadKind.RANGE | WorkloadKind.OVERLOAD:
            lengths = f"{options.prompt_tokens} tokens in, {options.output_tokens} out"
        case _:
            assert_never(options.kind)
    if options.rate_per_s is not None:
        arrivals = f"{options.rate_per_s:g} a second (Poisson)"
    elif options.kind is WorkloadKind.TRACE:
        arrivals = "at the recorded times" + (f", {options.speed_up:g} times as fast" if options.speed_up != 1 else "")
    else:
        arrivals = "all at once"
    return f"{options.kind}: {len(requests)} requests, {lengths}, {arrivals}, seed {options.seed}"


def most_tokens(requests: Sequence[PlannedRequest]) -> int:
    """Prompt and output tokens together of the longest request; 0 without requests."""
    return max((request.num_prompt_tokens + request.num_output_tokens for request in requests), default=0)


def _arrivals(options: WorkloadOptions) -> list[float]:
    return arrival_times(options.num_requests, options.rate_per_s, options.duration_s, options.seed)


def _independent_requests(options: WorkloadOptions) -> list[PlannedRequest]:
    lengths = Random(f"{options.seed}/lengths")
    return [
        PlannedRequest(
            index,
            arrival_s,
            (Segment(f"own/{index}", _draw(options.prompt_tokens, lengths)),),
            _draw(options.output_tokens, lengths),
        )
        for index, arrival_s in enumerate(_arrivals(options))
    ]


def _shared_prefix_requests(options: WorkloadOptions) -> list[PlannedRequest]:
    lengths = Random(f"{options.seed}/lengths")
    requests = []
    for index, arrival_s in enumerate(_arrivals(options)):
        prefix = Segment(f"prefix/{lengths.randrange(options.num_prefixes)}", options.prefix_tokens)
        own = Segment(f"own/{index}", _draw(options.prompt_tokens, lengths))
        requests.append(PlannedRequest(index, arrival_s, (prefix, own), _draw(options.output_tokens, lengths)))
    return requests


def _trace_requests(options: WorkloadOptions, trace: Sequence[TraceEntry]) -> list[PlannedRequest]:
    if options.rate_per_s is None:
        arrivals = [entry.arrival_s / options.speed_up for entry in trace]
    else:
        arrivals = arrival_times(len(trace), options.rate_per_s, None, options.seed)
    return [
        PlannedRequest(
            index,
            arrival_s,
            _trace_segments(index, entry, _cut(entry.num_prompt_tokens, options.max_prompt_tokens)),
            _cut(entry.num_output_tokens, options.max_output_tokens),
        )
        for index, (arrival_s, entry) in enumerate(zip(arrivals, trace, strict=True))
    ]


def _trace_segments(index: int, entry: TraceEntry, num_tokens: int) -> tuple[Segment, ...]:
    """One segment a block that the trace names, and one for what it does not name."""
    segments = []
    left = num_tokens
    for block_id in entry.block_ids:
        size = min(left, TRACE_BLOCK_TOKENS)
        if size > 0:
            segments.append(Segment(f"block/{block_id}", size))
        left -= size
    if left > 0:
        segments.append(Segment(f"own/{index}", left))
    return tuple(segments)


def _draw(length: LengthRange, random: Random) -> int:
    return random.randint(length.least, length.most)


def _cut(num_tokens: int, most: int | None) -> int:
    # Recorded requests may have no output: a completion of no tokens cannot be asked for.
    return max(1, num_tokens if most is None else min(num_tokens, most))
