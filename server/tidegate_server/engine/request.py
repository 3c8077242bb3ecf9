"""One request as the scheduler sees it, and the states it moves through."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Final, assert_never

from tidegate_server.engine.batch import RequestId
from tidegate_server.engine.messages import FinishReason
from tidegate_server.engine.prefix_cache import BlockHash
from tidegate_server.engine.sampling_params import SamplingParams


class RequestState(Enum):
    WAITING = auto()  # queued, never ran; holds no blocks
    PREFILLING = auto()  # more than one known token to compute; holds blocks
    DECODING = auto()  # one token per step; holds blocks
    PREEMPTED = auto()  # queued again, keeps its output; holds no blocks
    FINISHED = auto()  # terminal; blocks given back


ALLOWED_MOVES: Final[Mapping[RequestState, frozenset[RequestState]]] = MappingProxyType(
    {
        RequestState.WAITING: frozenset({RequestState.PREFILLING, RequestState.FINISHED}),
        RequestState.PREFILLING: frozenset({RequestState.DECODING, RequestState.PREEMPTED, RequestState.FINISHED}),
        RequestState.DECODING: frozenset({RequestState.PREEMPTED, RequestState.FINISHED}),
        RequestState.PREEMPTED: frozenset({RequestState.PREFILLING, RequestState.FINISHED}),
        RequestState.FINISHED: frozenset(),
    }
)


def holds_blocks(state: RequestState) -> bool:
    match state:
        case RequestState.WAITING | RequestState.PREEMPTED | RequestState.FINISHED:
            return False
        case RequestState.PREFILLING | RequestState.DECODING:
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

    state: RequestState = RequestState.WAITING
    epoch: int = 0  # renewed at each admission
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)  # append-only while blocks are held
    block_hashes: list[BlockHash] = field(default_factory=list)  # of the known tokens' full blocks, as far as needed
    num_known_blocks: int = 0  # leading blocks of the table that the prefix cache has been told
    in_flight: bool = False  # part of a step whose result has not come back
    is_stalled: bool = False  # needs a block, and nobody later holds one that could be taken
    first_scheduled_s: float | None = None
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache at first admission
    num_preemptions: int = 0

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_new_tokens(self) -> int:
        """Known tokens that are not computed yet."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def order(self) -> tuple[int, int]:
        """Smaller is served first and preempted last."""
        return (self.priority, self.claim)

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
