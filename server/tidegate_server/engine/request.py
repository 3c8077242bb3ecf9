"""One request as the scheduler sees it, and the states it moves through."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Final, assert_never

from tidegate_server.engine.batch import RequestId, ScheduledRequest
from tidegate_server.engine.messages import FinishReason
from tidegate_server.engine.prefix_cache import BlockHash
from tidegate_server.engine.sampling_params import SamplingParams


class RequestState(Enum):
    WAITING = auto()  # queued, never ran; holds no blocks
    PREFILLING = auto()  # more than one known token to compute; holds blocks
    DECODING = auto()  # one token per step; holds blocks
    PREEMPTED = auto()  # queued again, keeps its output; holds no blocks
    SWAPPED = auto()  # queued again, its blocks are in host memory; holds none on the device
    TRIMMED = auto()  # queued again, keeps its first blocks
    FINISHED = auto()  # terminal; blocks given back


_RUNNING: Final = frozenset({RequestState.PREFILLING, RequestState.DECODING})
_QUEUED_AGAIN: Final = frozenset({RequestState.PREEMPTED, RequestState.SWAPPED, RequestState.TRIMMED})
_END: Final = frozenset({RequestState.FINISHED})

ALLOWED_MOVES: Final[Mapping[RequestState, frozenset[RequestState]]] = MappingProxyType(
    {
        # A follower waits with its leader's blocks once there are any.
        RequestState.WAITING: frozenset({RequestState.PREFILLING, RequestState.TRIMMED}) | _END,
        RequestState.PREFILLING: frozenset({RequestState.DECODING}) | _QUEUED_AGAIN | _END,
        RequestState.DECODING: _QUEUED_AGAIN | _END,
        RequestState.PREEMPTED: frozenset({RequestState.PREFILLING}) | _END,
        # What was kept can be lost while it waits: host blocks to a failed copy, first blocks to a request before it.
        RequestState.SWAPPED: frozenset({RequestState.PREFILLING, RequestState.PREEMPTED}) | _END,
        RequestState.TRIMMED: frozenset({RequestState.PREFILLING, RequestState.PREEMPTED, RequestState.SWAPPED}) | _END,
        RequestState.FINISHED: frozenset(),
    }
)


def is_running(state: RequestState) -> bool:
    """Whether steps compute for it."""
    return state in _RUNNING


def is_queued(state: RequestState) -> bool:
    """Whether it waits for blocks or for a seat."""
    return state is RequestState.WAITING or state in _QUEUED_AGAIN


def holds_blocks(state: RequestState) -> bool:
    match state:
        case RequestState.WAITING | RequestState.PREEMPTED | RequestState.SWAPPED | RequestState.FINISHED:
            return False
        case RequestState.PREFILLING | RequestState.DECODING | RequestState.TRIMMED:
            return True
        case _:
            assert_never(state)


class ForbiddenMove(AssertionError):
    """A request was to move between two states that `ALLOWED_MOVES` does not connect: a mistake of ours."""


@dataclass(slots=True, eq=False)
class Request:
    """One request. The scheduler lets `num_computed_tokens` catch up with the tokens that are known."""

    request_id: RequestId
    token_ids: list[int]  # the prompt, then the output so far; append-only
    num_prompt_tokens: int
    sampling: SamplingParams
    seed: int
    end_token_ids: frozenset[int]  # drawing one of them ends the request
    max_total_tokens: int  # prompt and output together
    priority: int
    claim: int  # number of arrival; with the priority, the order in which requests are served
    arrival_s: float
    cache_root: BlockHash
    tenant: str = ""  # whose share of the engine this is
    deadline_s: float | None = None  # CLOCK_MONOTONIC; not begun by then, it is given up

    state: RequestState = RequestState.WAITING
    epoch: int = 0  # renewed at each admission
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)  # append-only while the request runs
    host_table: list[int] = field(default_factory=list)  # while swapped: the host blocks of its first positions
    num_swapped_tokens: int = 0  # whose KV lies in them
    block_hashes: list[BlockHash] = field(default_factory=list)  # of the known tokens' full blocks, as far as needed
    num_known_blocks: int = 0  # leading blocks of the table that the prefix cache has been told
    in_flight: bool = False  # part of a step whose result has not come back
    is_stalled: bool = False  # needs a block, and nobody later holds one that could be taken
    queued_s: float | None = None  # when it began to wait for the first time
    is_reserved: bool = False  # holds the blocks of its longest possible output; never preempted again
    leader: "Request | None" = None  # computes the same prompt; this one is held back until that is done
    followers: list["Request"] = field(default_factory=list)  # held back for this one
    first_scheduled_s: float | None = None
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache at first admission
    num_preemptions: int = 0
    num_once_computed: int = 0  # tokens computed at the last preemption; computing them again is no progress

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_new_tokens(self) -> int:
        """Known tokens that are not computed yet."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def precedence(self) -> tuple[int, int]:
        """Smaller is served first and preempted last."""
        return (self.priority, self.claim)

    @property
    def num_final_tokens(self) -> int:
        """Tokens of prompt and output together, if the output gets as long as it may."""
        return min(self.num_prompt_tokens + self.sampling.max_tokens, self.max_total_tokens)

    def share(self, start: int, stop: int) -> ScheduledRequest:
        """Its part of a step that computes positions `start` to `stop`; up to the last known one, it draws."""
        return ScheduledRequest(
            request_id=self.request_id,
            start=start,
            token_ids=self.token_ids[start:stop],
            block_table=self.block_table,
            sampling=self.sampling if stop == len(self.token_ids) else None,
            seed=self.seed,
            num_output_tokens=self.num_output_tokens,
            epoch=self.epoch,
        )

    def move_to(self, state: RequestState) -> None:
        """Change the state.

        Raises:
            ForbiddenMove: no such move in `ALLOWED_MOVES`.
        """
        if state not in ALLOWED_MOVES[self.state]:
            raise ForbiddenMove(f"{self.request_id}: {self.state.name} to {state.name}")
        self.state = state


def end_reason(request: Request) -> FinishReason | None:
    """Whether the token appended last ends the request, and why; an end token counts before a limit does."""
    num_before = request.num_output_tokens - 1
    if request.token_ids[-1] in request.end_token_ids and num_before >= request.sampling.min_tokens:
        return FinishReason.STOP
    if request.num_output_tokens >= request.sampling.max_tokens:
        return FinishReason.LENGTH
    if len(request.token_ids) >= request.max_total_tokens:
        return FinishReason.LENGTH
    return None
