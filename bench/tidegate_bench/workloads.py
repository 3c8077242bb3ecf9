"""The workloads W1 to W5 as requests with exact lengths: the same seed gives the same requests, on every machine.

Prompts are token ids, so that a length is a length for every server. Lengths and arrival times depend on the seed
alone; token ids also depend on the repeat, so that a repeat asks for the same amount of work but finds nothing of
itself in a prefix cache.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

FIRST_TOKEN_ID = 1000  # below lie special tokens and single bytes, which some tokenizers treat apart
SHARED_PREFIX_TOKENS = 512
ARRIVALS_PER_S = 2.0


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One completion to ask for: `arrival_s` after the start, `num_output_tokens` to the last one (no end token)."""

    index: int
    arrival_s: float
    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival, and the KV memory they are meant to be served with."""

    name: str
    requests: tuple[PlannedRequest, ...]
    kv_tokens: int | None = None  # None: what the server takes by default

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self.requests)

    @property
    def num_output_tokens(self) -> int:
        return sum(request.num_output_tokens for request in self.requests)

    @property
    def num_distinct_prompt_tokens(self) -> int:
        """Prompt tokens left to compute for a server that keeps every shared prefix."""
        prompts = sorted(request.prompt_token_ids for request in self.requests)
        shared = sum(_num_common(left, right) for left, right in itertools.pairwise(prompts))
        return self.num_prompt_tokens - shared


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of each workload to run."""

    burst_requests: int  # W1 and W5
    prefix_requests: int  # W2
    open_loop_s: float  # W3
    stream_tokens: int  # W4, in and out alike
    tight_kv_tokens: int  # W5


FULL = Scale(burst_requests=64, prefix_requests=32, open_loop_s=60.0, stream_tokens=128, tight_kv_tokens=3072)
QUICK = Scale(burst_requests=16, prefix_requests=8, open_loop_s=10.0, stream_tokens=64, tight_kv_tokens=1024)

DESCRIPTIONS: Mapping[str, str] = {
    "W1": "a burst at once: 32 to 256 tokens in, 16 to 128 out",
    "W2": "a burst at once: the same 512 tokens and 32 of its own in, 32 out",
    "W3": "2 requests a second, Poisson: lengths as in W1",
    "W4": "one stream",
    "W5": "W1 with KV memory for a fraction of it",
}


def build_workload(name: str, scale: Scale, *, seed: int = 0, repeat: int = 0, vocab_size: int = 49152) -> Workload:
    """Draw one workload.

    Args:
        name: a key of `DESCRIPTIONS`.
        seed: of lengths and arrival times.
        repeat: varies the token ids only.
        vocab_size: token ids are drawn below it.

    Raises:
        ValueError: no such workload, or a vocabulary too small to draw from.
    """
    if name not in DESCRIPTIONS:
        raise ValueError(f"workload {name!r}: choose from {', '.join(DESCRIPTIONS)}")
    if vocab_size <= FIRST_TOKEN_ID:
        raise ValueError(f"vocabulary of {vocab_size} tokens: prompts are drawn from {FIRST_TOKEN_ID} upwards")
    # W5 is W1 under less memory, so it draws the very same requests.
    drawn_as = "W1" if name == "W5" else name
    shape = Random(f"{drawn_as}/{seed}/shape")
    ids = Random(f"{drawn_as}/{seed}/{repeat}/ids")

    def draw(count: int) -> tuple[int, ...]:
        return tuple(ids.randrange(FIRST_TOKEN_ID, vocab_size) for _ in range(count))

    requests = _SHAPES[name](scale, shape, draw)
    return Workload(name, tuple(requests), kv_tokens=scale.tight_kv_tokens if name == "W5" else None)


Draw = Callable[[int], tuple[int, ...]]


def _burst(scale: Scale, shape: Random, draw: Draw) -> Sequence[PlannedRequest]:
    return [_mixed_request(index, 0.0, shape, draw) for index in range(scale.burst_requests)]


def _shared_prefix(scale: Scale, shape: Random, draw: Draw) -> Sequence[PlannedRequest]:
    prefix = draw(SHARED_PREFIX_TOKENS)
    return [PlannedRequest(index, 0.0, prefix + draw(32), 32) for index in range(scale.prefix_requests)]


def _open_loop(scale: Scale, shape: Random, draw: Draw) -> Sequence[PlannedRequest]:
    requests: list[PlannedRequest] = []
    arrival_s = shape.expovariate(ARRIVALS_PER_S)
    while arrival_s < scale.open_loop_s:
        requests.append(_mixed_request(len(requests), arrival_s, shape, draw))
        arrival_s += shape.expovariate(ARRIVALS_PER_S)
    return requests


def _one_stream(scale: Scale, shape: Random, draw: Draw) -> Sequence[PlannedRequest]:
    return [PlannedRequest(0, 0.0, draw(scale.stream_tokens), scale.stream_tokens)]


def _mixed_request(index: int, arrival_s: float, shape: Random, draw: Draw) -> PlannedRequest:
    num_prompt_tokens = shape.randint(32, 256)
    return PlannedRequest(index, arrival_s, draw(num_prompt_tokens), shape.randint(16, 128))


_SHAPES: Mapping[str, Callable[[Scale, Random, Draw], Sequence[PlannedRequest]]] = {
    "W1": _burst,
    "W2": _shared_prefix,
    "W3": _open_loop,
    "W4": _one_stream,
    "W5": _burst,
}


def _num_common(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
