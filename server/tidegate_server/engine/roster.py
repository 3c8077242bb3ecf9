"""Every unfinished request, where it stands, and the moves between seats, queue and end. Decides nothing."""

from collections.abc import Iterator
from itertools import count

from tidegate_server.engine.batch import RequestId, ScheduledRequest
from tidegate_server.engine.block_tables import BlockTables
from tidegate_server.engine.claim_queue import ClaimQueue
from tidegate_server.engine.deadlines import Deadlines
from tidegate_server.engine.fair_share import FairShareQueue
from tidegate_server.engine.preemption import Preemption
from tidegate_server.engine.preemption_kind import PreemptionKind
from tidegate_server.engine.prompt_groups import PromptGroups
from tidegate_server.engine.request import Request, RequestState, is_running
from tidegate_server.engine.waiting_room import WaitingQueue, WaitingRoom


class Roster:
    """Who runs, who waits and who is held back for a prompt that another computes.

    Attributes:
        running: in the order in which they are served, and the last preempted first.
        waiting: in the order in which they will be admitted.
        fence: the last step in flight, which may still touch blocks that are given back now; None when there is none.
    """

    def __init__(self, tables: BlockTables, shares: FairShareQueue | None, max_age_s: float) -> None:
        """
        Args:
            shares: the queue of those who wait, when tenants share the engine; None: by arrival.
        """
        queue: WaitingQueue = ClaimQueue() if shares is None else shares
        self._tables = tables
        self._shares = shares
        self._requests: dict[RequestId, Request] = {}
        self._groups = PromptGroups()
        self._deadlines = Deadlines()
        self._epochs = count(1)
        self.running = ClaimQueue()
        self.waiting = WaitingRoom(queue, max_age_s)
        self.fence: int | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(tuple(self._requests.values()))

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    @property
    def ids(self) -> tuple[RequestId, ...]:
        return tuple(self._requests)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + self._groups.num_held_back

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens that those who wait still have to compute; whoever is held back will compute one."""
        return self.waiting.num_tokens + self._groups.num_held_back

    def find(self, request_id: str) -> Request | None:
        return self._requests.get(RequestId(request_id))

    def current(self, share: ScheduledRequest) -> Request | None:
        """The request of a share, unless it was aborted or preempted since."""
        request = self._requests.get(share.request_id)
        return request if request is not None and request.epoch == share.epoch and request.in_flight else None

    def expired(self, now: float) -> tuple[Request, ...]:
        """Those whose deadline passed before they were begun."""
        return self._deadlines.expired(now)

    def enter(self, request: Request, leader_id: str, now: float) -> None:
        """A new request waits, or is held back while the leader that it names computes the same prompt."""
        leader = self._groups.leader_of(request, leader_id, self._requests)
        self._requests[request.request_id] = request
        if leader is None:
            self._wait_anew(request, now)
        elif leader.num_computed_tokens >= leader.num_prompt_tokens and leader.block_table:
            self._fork(leader, request, now)
        else:
            self._groups.hold_back(request, leader)

    def seat(self, request: Request) -> None:
        """A waiting request that has its blocks runs from now on."""
        self.waiting.remove(request)
        self._deadlines.discard(request)
        if self._shares is not None and request.num_preemptions == 0:
            # At once: the next one to admit depends on it.
            self._shares.charge(request.tenant, request.num_prompt_tokens - request.num_computed_tokens, 0)
        self.running.add(request)
        request.move_to(RequestState.PREFILLING)
        request.epoch = next(self._epochs)

    def release_followers(self, leader: Request, now: float) -> None:
        """The prompt is computed: those who were held back for it wait with its blocks."""
        for follower in self._groups.release(leader):
            self._fork(leader, follower, now)

    def preempt(self, request: Request, preemption: Preemption, now: float) -> None:
        """A request that runs, or that waits with blocks, gives up what `preemption` says, and waits."""
        if is_running(request.state):
            self.running.remove(request)
            request.num_preemptions += 1
            request.num_once_computed = max(request.num_once_computed, request.num_computed_tokens)
            request.in_flight = request.is_stalled = request.is_reserved = False
        else:
            self.waiting.remove(request)
        match preemption.kind:
            case PreemptionKind.RECOMPUTE:
                self._tables.give_back(request, self.fence)
            case PreemptionKind.SWAP:
                self._tables.swap_out(request, self.fence)
            case PreemptionKind.TAIL:
                self._tables.trim(request, preemption.num_kept_blocks, self.fence)
        state = _state_in_queue(request)
        if state is not request.state:
            request.move_to(state)
        self.waiting.add(request, now)

    def change_priority(self, request: Request, priority: int, now: float) -> None:
        """A request takes another place among those with whom it stands."""
        if is_running(request.state):
            self.running.remove(request)
            request.priority = priority
            self.running.add(request)
        elif request.leader is None:
            self.waiting.remove(request)
            request.priority = priority
            self.waiting.add(request, now)
        else:
            request.priority = priority

    def end(self, request: Request, now: float) -> None:
        """A request leaves, whatever its state; of those held back for it the first computes the prompt."""
        if is_running(request.state):
            self.running.remove(request)
        elif request.leader is not None:
            self._groups.leave(request)
        else:
            self.waiting.remove(request)
        self._deadlines.discard(request)
        self._tables.give_back(request, self.fence)
        request.in_flight = False
        request.move_to(RequestState.FINISHED)
        del self._requests[request.request_id]
        successor = self._groups.succeed(request)
        if successor is not None:
            self._wait_anew(successor, now)

    def _wait_anew(self, request: Request, now: float) -> None:
        """Wait with a deadline; whoever is held back has none: it is begun with the one that computes its prompt."""
        self._deadlines.add(request)
        self.waiting.add(request, now)

    def _fork(self, leader: Request, follower: Request, now: float) -> None:
        self._tables.fork(leader, follower)
        if follower.block_table:
            follower.move_to(RequestState.TRIMMED)
        self.waiting.add(follower, now)


def _state_in_queue(request: Request) -> RequestState:
    if request.block_table:
        return RequestState.TRIMMED
    return RequestState.SWAPPED if request.host_table else RequestState.PREEMPTED
