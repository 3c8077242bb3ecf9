"""Decides what each step computes: `schedule() -> Batch`, `update(batch, sampled) -> outputs`; integers only."""

import secrets
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType
from typing import Final

from tidegate_server.engine.admission import Capacity
from tidegate_server.engine.arrival import new_request, problem_with
from tidegate_server.engine.batch import Batch, BlockCopies, RequestId, SampledToken, ScheduledRequest
from tidegate_server.engine.block_pool import BlockPool
from tidegate_server.engine.block_tables import BlockTables
from tidegate_server.engine.claim_queue import ClaimQueue
from tidegate_server.engine.event_log import EngineEvent, EventKind, EventLog
from tidegate_server.engine.host_pool import HostPool
from tidegate_server.engine.load_window import QueueTimeWindow
from tidegate_server.engine.messages import AddRequest, FinishReason, RequestOutput
from tidegate_server.engine.outputs import end_output, token_output
from tidegate_server.engine.preemption import Candidate, Preemption, PreemptionCost, choose_preemption
from tidegate_server.engine.preemption_cost import UNMEASURED
from tidegate_server.engine.preemption_kind import PreemptionKind, PreemptionReason
from tidegate_server.engine.prefix_cache import BlockHasher, PrefixRoot
from tidegate_server.engine.prompt_groups import PromptGroups
from tidegate_server.engine.request import Request, RequestState, end_reason, holds_blocks, is_running
from tidegate_server.engine.step_budget import StepBudget
from tidegate_server.engine.step_time import StepShape, StepTimeModel
from tidegate_server.engine.waiting_room import WaitingRoom
from tidegate_server.settings import PreemptionMode, PreemptionPolicy

NO_WORK: Final = StepShape()
NO_ERRORS: Final[Mapping[str, str]] = MappingProxyType({})

# After so many preemptions a request gets the blocks of its longest possible output at once, and keeps them.
RESERVED_AFTER: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What the scheduler must know; fixed for the engine's life."""

    capacity: Capacity
    max_num_seqs: int  # most requests that run at once
    max_num_batched_tokens: int  # most tokens that one step computes
    eos_token_ids: tuple[int, ...] = ()
    model_revision: str = ""
    kv_dtype: str = ""
    prefix_caching: bool = True
    root_seed: int = 0
    num_host_blocks: int = 0
    preemption_mode: PreemptionMode = PreemptionMode.AUTO
    preemption_policy: PreemptionPolicy = PreemptionPolicy.CHEAPEST
    max_age_s: float = 60.0  # who has waited so long goes before every priority
    step_time_target: float = 2.0  # multiple of the decodes' own time that a step with prompts may take; 0: any

    @property
    def max_num_running(self) -> int:
        """Every running request must get its one token in every step."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)


@dataclass(slots=True)
class _Draft:
    """A batch while it is put together."""

    step: int
    now: float
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    decodes: StepShape = NO_WORK  # the step with its decodes alone
    planned: StepShape = NO_WORK  # the step so far
    is_short_of_blocks: bool = False  # somebody was preempted or stalled, so nobody is admitted


class Scheduler:
    """Holds every unfinished request and shares out tokens and blocks among them.

    Each request has computed tokens and known ones, and a step lets the first catch up with the second; there is no
    prefill mode and no decode mode. Several steps may be in flight: a request in one of them is left out of the next,
    and results come back in the order of the steps.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        events: EventLog | None = None,
        hash_key: bytes | None = None,
        step_time: StepTimeModel | None = None,
        cost: PreemptionCost = UNMEASURED,
    ) -> None:
        """
        Args:
            step_time: what steps take; whoever runs them keeps it up to date. None: nobody knows.
            cost: of preempting.
        """
        capacity = config.capacity
        self._config = config
        self._cost = cost
        self._budget = StepBudget(
            token_cap=config.max_num_batched_tokens,
            time_target=config.step_time_target,
            model=step_time if step_time is not None else StepTimeModel(),
        )
        self._hasher = BlockHasher(hash_key if hash_key is not None else secrets.token_bytes(32))
        self._tables = BlockTables(
            capacity.num_kv_blocks, capacity.block_size, self._hasher, config.prefix_caching, config.num_host_blocks
        )
        self._requests: dict[RequestId, Request] = {}
        self._running = ClaimQueue()
        self._waiting = WaitingRoom(ClaimQueue(), config.max_age_s)
        self._groups = PromptGroups()
        self._in_flight: deque[int] = deque()  # steps whose results have not come back, oldest first
        self._preempted: list[RequestId] = []  # since the last batch
        self._epochs = count(1)
        self.events = events if events is not None else EventLog()
        self.queue_times = QueueTimeWindow()
        self.step = 0  # of the last batch
        self.num_requests = 0  # taken in
        self.preemptions: Counter[tuple[PreemptionKind, PreemptionReason]] = Counter()
        self.num_stale_results = 0
        # Of prompts, by where they came from, at the first admission only.
        self.prefix_miss_tokens = 0
        self.prefix_hit_tokens = 0
        self.prefix_host_hit_tokens = 0
        self.recomputed_tokens = 0  # computed before a preemption, and not found after it

    # What is there.

    @property
    def pool(self) -> BlockPool:
        return self._tables.pool

    @property
    def host(self) -> HostPool | None:
        return self._tables.host

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + self._groups.num_held_back

    @property
    def waiting_tokens(self) -> int:
        """Tokens that waiting requests still have to compute."""
        return self._waiting.num_tokens + self._groups.num_held_back

    @property
    def num_preemptions(self) -> int:
        return self.preemptions.total()

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def unfinished_ids(self) -> tuple[RequestId, ...]:
        return tuple(self._requests)

    def queue_time_p90_s(self, now: float) -> float:
        waiting_since = (r.arrival_s for r in self._requests.values() if r.first_scheduled_s is None)
        return self.queue_times.p90_s(waiting_since, now)

    # Requests come and go.

    def add(self, command: AddRequest, now: float) -> RequestOutput | None:
        """Queue a request; the output is its refusal when it can never run."""
        request_id, config = RequestId(command.request_id), self._config
        problem = problem_with(command, config.capacity, self._requests)
        if problem is not None:
            self._record(EventKind.REFUSED, now, request_id, problem, len(command.prompt_token_ids))
            return RequestOutput(request_id=request_id, finish_reason=FinishReason.ERROR, error=problem, refused=True)
        request = new_request(
            command,
            claim=self.num_requests,
            max_total_tokens=config.capacity.max_total_tokens,
            eos_token_ids=config.eos_token_ids,
            root_seed=config.root_seed,
            cache_root=self._hasher.root(PrefixRoot(config.model_revision, config.kv_dtype, None, command.cache_salt)),
        )
        leader = self._groups.leader_of(request, command.leader_id, self._requests)
        self.num_requests += 1
        self._requests[request_id] = request
        self._record(EventKind.ARRIVED, now, request_id, f"priority {request.priority}", request.num_prompt_tokens)
        if leader is None:
            self._waiting.add(request, now)
        elif leader.num_computed_tokens >= leader.num_prompt_tokens and leader.block_table:
            self._fork(leader, request, now)
        else:
            self._groups.hold_back(request, leader)
        return None

    def abort(self, request_id: str, now: float, reason: str = "the client left") -> RequestOutput | None:
        """End a request at any moment, in flight too; None when there is no such request any more."""
        request = self._requests.get(RequestId(request_id))
        if request is None:
            return None
        self._end(request, now)
        self._record(EventKind.ABORTED, now, request.request_id, reason, request.num_output_tokens)
        return end_output(request, FinishReason.ABORT)

    def preempt(
        self, request_id: str, now: float, reason: str, kind: PreemptionKind = PreemptionKind.RECOMPUTE
    ) -> None:
        """Take a request's blocks at any moment, in flight too; it keeps its output and returns before new ones.

        Args:
            kind: with TAIL it keeps the first half; SWAP without room in host memory gives up everything instead.
        """
        request = self._requests.get(RequestId(request_id))
        if request is None or not holds_blocks(request.state):
            return
        if kind is PreemptionKind.SWAP and self._tables.num_host_blocks_for(request) is None:
            kind = PreemptionKind.RECOMPUTE
        num_kept = len(request.block_table) // 2 if kind is PreemptionKind.TAIL else 0
        self._preempt(
            request, Preemption(request.request_id, kind, num_kept, 0.0), PreemptionReason.FORCED, reason, now
        )

    def change_priority(self, request_id: str, priority: int, now: float) -> None:
        """Serve a request earlier or later from now on; unknown ones are ignored."""
        request = self._requests.get(RequestId(request_id))
        if request is None:
            return
        is_seated, is_held_back = is_running(request.state), request.leader is not None
        if is_seated:
            self._running.remove(request)
        elif not is_held_back:
            self._waiting.remove(request)
        request.priority = priority
        if is_seated:
            self._running.add(request)
        elif not is_held_back:
            self._waiting.add(request, now)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache; requests keep the blocks that they hold."""
        self._tables.forget_all()

    # A step.

    def schedule(self, now: float) -> Batch:
        """Put the next step together; its batch is empty when nobody can go on."""
        draft = _Draft(self.step + 1, now)
        for request in self._waiting.promote(now):
            self._record(EventKind.AGED, now, request.request_id, "it has waited too long", len(request.token_ids))
        self._displace(draft)
        self._schedule_decodes(draft)
        self._schedule_prefills(draft)
        if not draft.is_short_of_blocks:
            self._admit(draft)
        if not draft.scheduled and not self._in_flight:
            self._end_standstill(draft)
        if not draft.scheduled:
            return Batch(step=self.step, scheduled=())
        self.step = draft.step
        self._in_flight.append(draft.step)
        reason = f"{len(draft.scheduled)} requests of {self.num_running} running, {self.num_waiting} waiting"
        self._record(EventKind.STEP, now, None, reason, draft.planned.num_new_tokens)
        preempted, self._preempted = tuple(self._preempted), []
        return Batch(
            step=draft.step,
            scheduled=tuple(draft.scheduled),
            preempted=preempted,
            copies=self._tables.take_copies(),
        )

    def without_lost(self, batch: Batch, failed: BlockCopies, now: float) -> Batch:
        """What of a batch can be run when some of its copies failed: who reads their blocks computes them again."""
        lost = self._tables.lose(batch.copies, failed)
        self._record(EventKind.COPY_FAILED, now, None, f"{len(lost.device)} blocks, {len(lost.host)} on the host", 0)
        for request in tuple(self._requests.values()):
            if lost.device.isdisjoint(request.block_table) and lost.host.isdisjoint(request.host_table):
                continue
            everything = Preemption(request.request_id, PreemptionKind.RECOMPUTE, 0, 0.0)
            self._preempt(request, everything, PreemptionReason.FORCED, "a copy of its blocks failed", now)
        return self.without_stale(batch)

    def without_stale(self, batch: Batch) -> Batch:
        """A batch without those who were preempted or aborted since it was put together."""
        return replace(batch, scheduled=tuple(share for share in batch.scheduled if self._current(share) is not None))

    def update(
        self, batch: Batch, sampled: Sequence[SampledToken], now: float, errors: Mapping[str, str] = NO_ERRORS
    ) -> tuple[RequestOutput, ...]:
        """Take in what a step gave; results of requests that were aborted or preempted meanwhile are dropped.

        Args:
            errors: by request id, for those of the batch that could not be computed.
        """
        oldest = self._in_flight.popleft()
        assert oldest == batch.step, f"step {batch.step} came back before step {oldest}"
        self._tables.retire(batch.step)
        token_of = {token.request_id: token for token in sampled}
        outputs: list[RequestOutput] = []
        for share in batch.scheduled:
            request = self._current(share)
            if request is None:
                self.num_stale_results += 1
                reason = f"of step {batch.step}; the request was aborted or preempted meanwhile"
                self._record(EventKind.STALE_RESULT, now, share.request_id, reason, share.num_new_tokens)
                continue
            error = errors.get(share.request_id)
            if error is not None:
                outputs.append(self._fail(request, error, now))
                continue
            self._advance(request, share.num_new_tokens, now)
            if share.sampling is not None:
                outputs.append(self._append(request, token_of[share.request_id], batch.step, now))
        return tuple(outputs)

    def _displace(self, draft: _Draft) -> None:
        """Who waits, lacks a seat or blocks, and is of strictly higher priority takes them from those who run.

        Before anybody is part of the step: from then on nobody's blocks can be taken.
        """
        while self._waiting and self._running and self._waiting.first().rank < self._running[-1].rank:
            request = self._waiting.first()
            has_seat = self.num_running < self._config.max_num_running
            if has_seat and self._tables.num_missing(request, self._num_claimed(request), self.num_running) <= 0:
                return  # it will be admitted anyway
            if not (self._find_seat(request, draft) and self._find_blocks(request, draft)):
                return
            self._seat(request)

    def _schedule_decodes(self, draft: _Draft) -> None:
        """One token for each running request, in order; preemption takes from those who come later in it."""
        index = 0
        while index < len(self._running):
            request = self._running[index]
            index += 1
            if request.in_flight or request.num_new_tokens != 1:
                continue
            if self._make_room(request, draft):
                self._add_share(request, 1, draft)
        draft.decodes = draft.planned

    def _schedule_prefills(self, draft: _Draft) -> None:
        """What the decodes leave of the budget, to as many running requests as it reaches."""
        for request in self._running:
            if request.in_flight or request.num_new_tokens == 1:
                continue
            most = self._most_tokens(request, draft)
            if most == 0:
                return
            self._add_share(request, min(request.num_new_tokens, most), draft)

    def _admit(self, draft: _Draft) -> None:
        """Requests that wait, strictly in order: whoever does not fit holds up those behind.

        So preempted requests return before new ones of their priority, and nothing new overtakes them: whoever was
        admitted once arrived before all of the same priority that never were.
        """
        while self._waiting:
            request = self._waiting.first()
            if self._most_tokens(request, draft) == 0:
                return
            if not (self._find_seat(request, draft) and self._find_blocks(request, draft)):
                return
            self._seat(request)
            # What it found may leave it other tokens to compute than those that were asked for.
            self._add_share(request, min(request.num_new_tokens, max(1, self._most_tokens(request, draft))), draft)

    def _seat(self, request: Request) -> None:
        self._waiting.remove(request)
        self._running.add(request)
        request.move_to(RequestState.PREFILLING)
        request.epoch = next(self._epochs)

    def _num_claimed(self, request: Request) -> int:
        """Tokens whose blocks a request gets when it is admitted: the known ones and the next, or all there may be."""
        if request.num_preemptions >= RESERVED_AFTER:
            return request.num_final_tokens
        return len(request.token_ids) + 1

    def _most_tokens(self, request: Request, draft: _Draft) -> int:
        return self._budget.num_prefill_tokens(draft.decodes, draft.planned, request.num_computed_tokens)

    def _end_standstill(self, draft: _Draft) -> None:
        """Nothing runs and nothing will come back: what those who wait kept, and those who run hold, must move.

        The last of those who run gives way, until the first of those who wait has all that it needs.
        """
        self._admit(draft)
        while not draft.scheduled and self._running:
            last = self._running[-1]
            everything = Preemption(last.request_id, PreemptionKind.RECOMPUTE, 0, 0.0)
            why = "nobody who runs can go on, and those who wait hold the other blocks"
            self._preempt(last, everything, PreemptionReason.BLOCKS, why, draft.now)
            self._admit(draft)

    def _find_seat(self, request: Request, draft: _Draft) -> bool:
        """Whether one more may run; of a strictly lower priority somebody gives up the seat, if it is the last."""
        if self.num_running < self._config.max_num_running:
            return True
        candidates = [r for r in self._running if r.rank > request.rank]
        return self._take_from(candidates, request, 0, PreemptionReason.SEATS, draft)

    def _find_blocks(self, request: Request, draft: _Draft) -> bool:
        """Give a waiting request all blocks of its known tokens and of the next one.

        Those of strictly lower priority make room for it, and those who wait behind it give what they kept.
        """
        num_tokens = self._num_claimed(request)
        # One spare block for each running request: none of them has to preempt within `block_size` steps.
        while (claim := self._tables.try_claim(request, num_tokens, self.num_running, draft.step)) is None:
            below = [r for r in self._running if r.rank > request.rank]
            candidates = [*below, *(r for r in self._waiting if r.block_table and r is not request)]
            num_missing = self._tables.num_missing(request, num_tokens, self.num_running)
            # Each of those who run also counts one block of the margin.
            if num_missing > self._tables.num_held_by(candidates) + len(below):
                return False  # taking all of it would not be enough
            if not self._take_from(candidates, request, num_missing, PreemptionReason.BLOCKS, draft):
                return False
        request.is_reserved = request.num_preemptions >= RESERVED_AFTER
        self._count_claim(request, claim.num_on_device, claim.num_on_host, draft)
        return True

    def _make_room(self, request: Request, draft: _Draft) -> bool:
        """A slot for the request's last token, at the cost of later requests if need be; False: not in this step."""
        while not self._tables.try_grow(request):
            draft.is_short_of_blocks = True
            candidates = [r for r in (*self._running, *self._waiting) if r.order > request.order and r.block_table]
            if not self._take_from(candidates, request, 1, PreemptionReason.BLOCKS, draft):
                if not request.is_stalled:
                    request.is_stalled = True
                    reason = "no block is free, and none can be taken from a later request"
                    self._record(EventKind.STALLED, draft.now, request.request_id, reason, len(request.token_ids))
                return False
        request.is_stalled = False
        return True

    def _take_from(
        self, requests: Sequence[Request], request: Request, num_wanted: int, reason: PreemptionReason, draft: _Draft
    ) -> bool:
        """Preempt one of these for `request`; False when none of them can be, or need not be."""
        if num_wanted > 0 and self.pool.num_pending > 0:
            return False  # blocks in flight come back by themselves
        config = self._config
        candidates = [self._candidate(r) for r in requests if not r.in_flight and not r.is_reserved]
        chosen = choose_preemption(
            candidates,
            num_wanted,
            config.capacity.block_size,
            config.preemption_mode,
            config.preemption_policy,
            self._cost,
        )
        if chosen is None:
            return False
        victim = self._requests[chosen.request_id]
        needs = "a seat" if reason is PreemptionReason.SEATS else f"{num_wanted} blocks"
        why = (
            f"{request.request_id} (priority {request.priority}) needs {needs} and none is free; of {len(candidates)} "
            f"behind it this one (priority {victim.priority}) costs {chosen.cost_s * 1e3:.1f} ms by {chosen.kind}"
        )
        self._preempt(victim, chosen, reason, why, draft.now)
        return True

    def _candidate(self, request: Request) -> Candidate:
        is_own = tuple(self.pool.num_holders(block) == 1 for block in request.block_table)
        return Candidate(
            request_id=request.request_id,
            order=request.order,
            num_preemptions=request.num_preemptions,
            num_output_tokens=request.num_output_tokens,
            num_computed_tokens=request.num_computed_tokens,
            own_blocks=is_own,
            num_known_blocks=request.num_known_blocks if self._config.prefix_caching else 0,
            num_host_blocks=self._tables.num_host_blocks_for(request),
        )

    def _preempt(
        self, request: Request, preemption: Preemption, reason: PreemptionReason, why: str, now: float
    ) -> None:
        was_running = is_running(request.state)
        if was_running:
            self._running.remove(request)
            request.num_preemptions += 1
            request.num_once_computed = max(request.num_once_computed, request.num_computed_tokens)
            request.in_flight = request.is_stalled = request.is_reserved = False
            self._preempted.append(request.request_id)
            self.preemptions[preemption.kind, reason] += 1
        else:
            self._waiting.remove(request)
        match preemption.kind:
            case PreemptionKind.RECOMPUTE:
                self._tables.give_back(request, self._fence())
            case PreemptionKind.SWAP:
                self._tables.swap_out(request, self._fence())
            case PreemptionKind.TAIL:
                self._tables.trim(request, preemption.num_kept_blocks, self._fence())
        state = RequestState.SWAPPED if request.host_table else RequestState.PREEMPTED
        if request.block_table:
            state = RequestState.TRIMMED
        if state is not request.state:
            request.move_to(state)
        self._waiting.add(request, now)
        kind = EventKind.PREEMPTED if was_running else EventKind.TRIMMED
        self._record(kind, now, request.request_id, why, len(request.token_ids))

    def _add_share(self, request: Request, num_tokens: int, draft: _Draft) -> None:
        start = request.num_computed_tokens
        stop = start + num_tokens
        request.in_flight = True
        draft.planned = draft.planned.plus(start, num_tokens)
        draft.scheduled.append(
            ScheduledRequest(
                request_id=request.request_id,
                start=start,
                token_ids=request.token_ids[start:stop],
                block_table=request.block_table,
                sampling=request.sampling if stop == len(request.token_ids) else None,
                seed=request.seed,
                num_output_tokens=request.num_output_tokens,
                epoch=request.epoch,
            )
        )

    def _current(self, share: ScheduledRequest) -> Request | None:
        """The request of a share, unless it was aborted or preempted since."""
        request = self._requests.get(share.request_id)
        return request if request is not None and request.epoch == share.epoch and request.in_flight else None

    def _advance(self, request: Request, num_tokens: int, now: float) -> None:
        request.in_flight = False
        request.num_computed_tokens += num_tokens
        self._tables.remember(request)
        if request.followers and request.num_computed_tokens >= request.num_prompt_tokens:
            for follower in self._groups.release(request):
                self._fork(request, follower, now)

    def _append(self, request: Request, token: SampledToken, step: int, now: float) -> RequestOutput:
        """Add a drawn token to its request, which may end with it."""
        if request.state is RequestState.PREFILLING:
            request.move_to(RequestState.DECODING)
        request.token_ids.append(token.token_id)
        is_first = request.num_output_tokens == 1
        if is_first:
            self._record(EventKind.FIRST_TOKEN, now, request.request_id, "", 1, step)
        reason = end_reason(request)
        if reason is not None:
            self._end(request, now)
            self._record(EventKind.FINISHED, now, request.request_id, reason.value, request.num_output_tokens, step)
        return token_output(request, token, reason)

    def _fail(self, request: Request, error: str, now: float) -> RequestOutput:
        self._end(request, now)
        self._record(EventKind.FAILED, now, request.request_id, error, request.num_output_tokens)
        return end_output(request, FinishReason.ERROR, error)

    def _fork(self, leader: Request, follower: Request, now: float) -> None:
        self._tables.fork(leader, follower)
        if follower.block_table:
            follower.move_to(RequestState.TRIMMED)
        self._waiting.add(follower, now)

    def _count_claim(self, request: Request, num_on_device: int, num_on_host: int, draft: _Draft) -> None:
        """A hit counts once in a request's life: finding its own blocks again after a preemption saves nothing new."""
        num_found, now = request.num_computed_tokens, draft.now
        reason = f"{num_on_device} tokens found on the device, {num_on_host} in host memory"
        if request.num_preemptions == 0:
            request.first_scheduled_s = now
            request.num_cached_tokens = num_found
            self.prefix_hit_tokens += num_on_device
            self.prefix_host_hit_tokens += num_on_host
            self.prefix_miss_tokens += request.num_prompt_tokens - num_found
            self.queue_times.record(max(0.0, now - request.arrival_s), now)
        else:
            self.recomputed_tokens += max(0, request.num_once_computed - num_found)
            reason = f"back after preemption {request.num_preemptions}; {reason}"
        self._record(EventKind.ADMITTED, now, request.request_id, reason, len(request.token_ids), draft.step)

    def _end(self, request: Request, now: float) -> None:
        if is_running(request.state):
            self._running.remove(request)
        elif request.leader is not None:
            self._groups.leave(request)
        else:
            self._waiting.remove(request)
        self._tables.give_back(request, self._fence())
        request.in_flight = False
        request.move_to(RequestState.FINISHED)
        del self._requests[request.request_id]
        successor = self._groups.succeed(request)
        if successor is not None:
            self._waiting.add(successor, now)

    def _fence(self) -> int | None:
        """The last step that may still touch blocks which are given back now."""
        return self._in_flight[-1] if self._in_flight else None

    def _record(
        self,
        kind: EventKind,
        now: float,
        request_id: RequestId | None,
        reason: str,
        num_tokens: int,
        step: int | None = None,
    ) -> None:
        at_step = self.step if step is None else step
        self.events.record(EngineEvent(kind, at_step, now, request_id, reason, num_tokens))
