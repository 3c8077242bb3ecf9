"""Chooses who gives blocks back, and how: the cheapest way for the victim that the policy names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self, assert_never

from tidegate_server.engine.batch import RequestId
from tidegate_server.engine.preemption_kind import PreemptionKind
from tidegate_server.settings import PreemptionMode, PreemptionPolicy


class PreemptionCost(Protocol):
    """What it costs to have blocks again, in seconds."""

    def recompute_s(self, start: int, stop: int) -> float:
        """Time to compute the tokens of positions `start` to `stop` again."""
        ...

    def copy_s(self, num_blocks: int) -> float:
        """Time to copy so many blocks one way."""
        ...


class OwnBlocks(Protocol):
    """By position in a block table: whether the block becomes available when its request releases it."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that may lose blocks, in numbers."""

    request_id: RequestId
    precedence: tuple[int, int]  # smaller is served first
    num_preemptions: int
    num_output_tokens: int
    num_computed_tokens: int
    own_blocks: OwnBlocks
    num_known_blocks: int  # leading blocks that the prefix cache keeps for as long as it can
    num_host_blocks: int | None  # that swapping it takes; None: there is no room


@dataclass(frozen=True, slots=True)
class Preemption:
    """One victim and what becomes of its blocks."""

    request_id: RequestId
    kind: PreemptionKind
    num_kept_blocks: int  # with TAIL; else 0
    cost_s: float  # estimated: to have everything again

    @classmethod
    def of_everything(cls, request_id: RequestId) -> Self:
        """All blocks, whatever that costs."""
        return cls(request_id, PreemptionKind.RECOMPUTE, 0, 0.0)


def choose_preemption(
    candidates: Sequence[Candidate],
    num_wanted: int,
    block_size: int,
    mode: PreemptionMode,
    policy: PreemptionPolicy,
    cost: PreemptionCost,
) -> Preemption | None:
    """The next victim, of the lowest priority there is; None when there is no candidate.

    It may free fewer than `num_wanted` blocks: then the next choice is made with one candidate less, or with a smaller
    one. A request that shares all its blocks frees none, and is chosen only when all do.
    """
    if not candidates:
        return None
    options = [(candidate, _cheapest_way(candidate, num_wanted, block_size, mode, cost)) for candidate in candidates]

    def badness(option: tuple[Candidate, Preemption]) -> tuple[object, ...]:
        candidate, preemption = option
        frees_nothing = not any(reversed(candidate.own_blocks))  # what is shared comes first
        priority, claim = candidate.precedence
        return (frees_nothing, -priority, *_by_policy(policy, candidate, preemption), -claim)

    return min(options, key=badness)[1]


def _by_policy(policy: PreemptionPolicy, candidate: Candidate, preemption: Preemption) -> tuple[float, ...]:
    """Smaller is preempted first, among candidates of one priority."""
    match policy:
        case PreemptionPolicy.CHEAPEST:
            return (preemption.cost_s,)
        case PreemptionPolicy.NEWEST_FIRST:
            return ()
        case PreemptionPolicy.LONGEST_FIRST:
            return (-candidate.num_output_tokens,)
        case PreemptionPolicy.MOST_PREEMPTED_LAST:
            return (candidate.num_preemptions, -candidate.num_output_tokens)
        case _:
            assert_never(policy)


def _cheapest_way(
    candidate: Candidate, num_wanted: int, block_size: int, mode: PreemptionMode, cost: PreemptionCost
) -> Preemption:
    recompute = _recompute(candidate, num_wanted, block_size, cost)
    swap, tail = _swap(candidate, cost), _tail(candidate, num_wanted, block_size, cost)
    match mode:
        case PreemptionMode.AUTO:
            # At equal cost whoever gives all its blocks leaves nothing behind that waits for nothing.
            return min((way for way in (recompute, swap, tail) if way is not None), key=lambda way: way.cost_s)
        case PreemptionMode.RECOMPUTE:
            return recompute
        case PreemptionMode.SWAP:
            return swap or recompute
        case PreemptionMode.TAIL:
            return tail
        case _:
            assert_never(mode)


def _recompute(candidate: Candidate, num_wanted: int, block_size: int, cost: PreemptionCost) -> Preemption:
    """What the prefix cache gives back costs nothing: it loses the last blocks first, and those wanted now at least."""
    num_found = max(0, min(candidate.num_known_blocks, _num_kept(candidate, num_wanted)))
    cost_s = cost.recompute_s(min(num_found * block_size, candidate.num_computed_tokens), candidate.num_computed_tokens)
    return Preemption(candidate.request_id, PreemptionKind.RECOMPUTE, 0, cost_s)


def _swap(candidate: Candidate, cost: PreemptionCost) -> Preemption | None:
    if candidate.num_host_blocks is None:
        return None
    return Preemption(candidate.request_id, PreemptionKind.SWAP, 0, 2 * cost.copy_s(candidate.num_host_blocks))


def _tail(candidate: Candidate, num_wanted: int, block_size: int, cost: PreemptionCost) -> Preemption:
    num_kept = _num_kept(candidate, num_wanted)
    start = min(num_kept * block_size, candidate.num_computed_tokens)
    cost_s = cost.recompute_s(start, candidate.num_computed_tokens)
    kind = PreemptionKind.TAIL if num_kept else PreemptionKind.RECOMPUTE
    return Preemption(candidate.request_id, kind, num_kept, cost_s)


def _num_kept(candidate: Candidate, num_wanted: int) -> int:
    """How many leading blocks stay when so many of its own are taken from the end."""
    num_kept = len(candidate.own_blocks)
    while num_kept > 0 and num_wanted > 0:
        num_kept -= 1
        num_wanted -= candidate.own_blocks[num_kept]
    return num_kept
