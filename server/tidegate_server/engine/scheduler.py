"""Decides what each step computes: `schedule() -> Batch`, `update(batch, sampled) -> outputs`; integers only."""

import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Final

from tidegate_server.engine.admission import Capacity, refusal
from tidegate_server.engine.batch import Batch, RequestId, SampledToken, ScheduledRequest
from tidegate_server.engine.block_pool import BlockPool
from tidegate_server.engine.block_tables import BlockTables
from tidegate_server.engine.claim_queue import ClaimQueue
from tidegate_server.engine.event_log import EngineEvent, EventKind, EventLog
from tidegate_server.engine.load_window import QueueTimeWindow
from tidegate_server.engine.messages import AddRequest, FinishReason, RequestOutput
from tidegate_server.engine.prefix_cache import BlockHasher, PrefixRoot
from tidegate_server.engine.request import Request, RequestState, end_reason, holds_blocks
from tidegate_server.engine.seeds import derive_seed

NO_ERRORS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What the scheduler must know; fixed for the engine's life."""

    capacity: Capacity
    max_num_seqs: int  # most requests that hold blocks at once
    max_num_batched_tokens: int  # most tokens that one step computes
    eos_token_ids: tuple[int, ...] = ()
    model_revision: str = ""
    kv_dtype: str = ""
    prefix_caching: bool = True
    root_seed: int = 0

    @property
    def max_num_running(self) -> int:
        """Every running request must get its one token in every step."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)


@dataclass(slots=True)
class _Draft:
    """A batch while it is put together."""

    step: int
    now: float
    token_budget: int
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    is_short_of_blocks: bool = False  # somebody was preempted or stalled, so nobody is admitted


class Scheduler:
    """Holds every unfinished request and shares out tokens and blocks among them.

    Each request has computed tokens and known ones, and a step lets the first catch up with the second; there is no
    prefill mode and no decode mode. Several steps may be in flight: a request in one of them is left out of the next,
    and results come back in the order of the steps.
    """

    def __init__(self, config: SchedulerConfig, events: EventLog | None = None, hash_key: bytes | None = None) -> None:
        capacity = config.capacity
        self._config = config
        self._hasher = BlockHasher(hash_key if hash_key is not None else secrets.token_bytes(32))
        self._tables = BlockTables(capacity.num_kv_blocks, capacity.block_size, self._hasher, config.prefix_caching)
        self._requests: dict[RequestId, Request] = {}
        self._running = ClaimQueue()
        self._waiting = ClaimQueue()
        self._in_flight: deque[int] = deque()  # steps whose results have not come back, oldest first
        self._preempted: list[RequestId] = []  # since the last batch
        self._epochs = count(1)
        self.events = events if events is not None else EventLog()
        self.queue_times = QueueTimeWindow()
        self.step = 0  # of the last batch
        self.num_requests = 0  # taken in
        self.num_preemptions = 0
        self.num_stale_results = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0
        self.waiting_tokens = 0  # that waiting requests still have to compute

    # What is there.

    @property
    def pool(self) -> BlockPool:
        return self._tables.pool

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def unfinished_ids(self) -> tuple[RequestId, ...]:
        return tuple(self._requests)

    def queue_time_p90_s(self, now: float) -> float:
        waiting_since = (r.arrival_s for r in self._waiting if r.state is RequestState.WAITING)
        return self.queue_times.p90_s(waiting_since, now)

    # Requests come and go.

    def add(self, command: AddRequest, now: float) -> RequestOutput | None:
        """Queue a request; the output is its refusal when it can never run."""
        request_id = RequestId(command.request_id)
        problem = refusal(command.prompt_token_ids, command.sampling, self._config.capacity)
        if problem is None and request_id in self._requests:
            problem = f"A request with the id {request_id} is running already; give each request its own."
        if problem is not None:
            self._record(EventKind.REFUSED, now, request_id, problem, len(command.prompt_token_ids))
            return RequestOutput(request_id=request_id, finish_reason=FinishReason.ERROR, error=problem, refused=True)
        request = self._new_request(request_id, command)
        self.num_requests += 1
        self._requests[request_id] = request
        self._enqueue(request)
        self._record(EventKind.ARRIVED, now, request_id, f"priority {request.priority}", request.num_prompt_tokens)
        return None

    def abort(self, request_id: str, now: float, reason: str = "the client left") -> RequestOutput | None:
        """End a request at any moment, in flight too; None when there is no such request any more."""
        request = self._requests.get(RequestId(request_id))
        if request is None:
            return None
        self._end(request)
        self._record(EventKind.ABORTED, now, request.request_id, reason, request.num_output_tokens)
        return _ended(request, FinishReason.ABORT)

    def preempt(self, request_id: str, now: float, reason: str) -> None:
        """Take a request's blocks at any moment, in flight too; it keeps its output and returns before new ones."""
        request = self._requests.get(RequestId(request_id))
        if request is None or not holds_blocks(request.state):
            return
        self._running.remove(request)
        self._tables.give_back(request, self._fence())
        request.in_flight = request.is_stalled = False
        request.num_preemptions += 1
        request.move_to(RequestState.PREEMPTED)
        self._enqueue(request)
        self._preempted.append(request.request_id)
        self.num_preemptions += 1
        self._record(EventKind.PREEMPTED, now, request.request_id, reason, len(request.token_ids))

    # A step.

    def schedule(self, now: float) -> Batch:
        """Put the next step together; its batch is empty when nobody can go on."""
        draft = _Draft(self.step + 1, now, self._config.max_num_batched_tokens)
        self._schedule_decodes(draft)
        self._schedule_prefills(draft)
        if not draft.is_short_of_blocks:
            self._admit(draft)
        if not draft.scheduled:
            return Batch(step=self.step, scheduled=())
        self.step = draft.step
        self._in_flight.append(draft.step)
        num_tokens = self._config.max_num_batched_tokens - draft.token_budget
        reason = f"{len(draft.scheduled)} requests of {self.num_running} running, {self.num_waiting} waiting"
        self._record(EventKind.STEP, now, None, reason, num_tokens)
        preempted, self._preempted = tuple(self._preempted), []
        return Batch(step=draft.step, scheduled=tuple(draft.scheduled), preempted=preempted)

    def update(
        self, batch: Batch, sampled: Sequence[SampledToken], now: float, errors: Mapping[str, str] = NO_ERRORS
    ) -> tuple[RequestOutput, ...]:
        """Take in what a step gave; results of requests that were aborted or preempted meanwhile are dropped.

        Args:
            errors: by request id, for those of the batch that could not be computed.
        """
        if not batch.scheduled:
            return ()
        oldest = self._in_flight.popleft()
        assert oldest == batch.step, f"step {batch.step} came back before step {oldest}"
        self.pool.retire(batch.step)
        token_of = {token.request_id: token for token in sampled}
        outputs: list[RequestOutput] = []
        for share in batch.scheduled:
            request = self._requests.get(share.request_id)
            if request is None or request.epoch != share.epoch or not request.in_flight:
                self.num_stale_results += 1
                reason = f"of step {batch.step}; the request was aborted or preempted meanwhile"
                self._record(EventKind.STALE_RESULT, now, share.request_id, reason, share.num_new_tokens)
                continue
            error = errors.get(share.request_id)
            if error is not None:
                outputs.append(self._fail(request, error, now))
                continue
            self._advance(request, share.num_new_tokens)
            if share.sampling is not None:
                outputs.append(self._append(request, token_of[share.request_id], batch.step, now))
        return tuple(outputs)

    def _schedule_decodes(self, draft: _Draft) -> None:
        """One token for each running request, in order; preemption takes from the end of the same order."""
        index = 0
        while index < len(self._running):
            request = self._running[index]
            index += 1
            if request.in_flight or request.num_new_tokens != 1:
                continue
            if self._make_room(request, draft):
                self._add_share(request, 1, draft)

    def _schedule_prefills(self, draft: _Draft) -> None:
        """The left-over budget, to as many running requests as it reaches."""
        for request in self._running:
            if draft.token_budget == 0:
                return
            if not request.in_flight and request.num_new_tokens > 1:
                self._add_share(request, min(request.num_new_tokens, draft.token_budget), draft)

    def _admit(self, draft: _Draft) -> None:
        """Requests that wait, strictly in order: whoever does not fit holds up those behind.

        So preempted requests return before new ones of their priority, and nothing new overtakes them: whoever was
        admitted once arrived before all of the same priority that never were.
        """
        while self._waiting and draft.token_budget > 0 and self.num_running < self._config.max_num_running:
            request = self._waiting[0]
            # One spare block for each running request: none of them has to preempt within `block_size` steps.
            if not self._tables.try_claim(request, margin=self.num_running):
                return
            self._dequeue(request)
            self._running.add(request)
            is_new = request.state is RequestState.WAITING
            request.move_to(RequestState.PREFILLING)
            request.epoch = next(self._epochs)
            if is_new:
                self._count_first_admission(request, draft.now)
            reason = f"{request.num_computed_tokens} tokens found in the prefix cache"
            if not is_new:
                reason = f"back after preemption {request.num_preemptions}; {reason}"
            self._record(EventKind.ADMITTED, draft.now, request.request_id, reason, len(request.token_ids), draft.step)
            self._add_share(request, min(request.num_new_tokens, draft.token_budget), draft)

    def _make_room(self, request: Request, draft: _Draft) -> bool:
        """A slot for the request's last token, at the cost of later requests if need be; False: not in this step."""
        while not self._tables.try_grow(request):
            victim = self._running[-1]
            # Blocks in flight come back by themselves; and nobody takes from those who go before it.
            if victim is request or victim.in_flight or self.pool.num_pending > 0:
                draft.is_short_of_blocks = True
                if not request.is_stalled:
                    request.is_stalled = True
                    reason = "no block is free, and none can be taken from a later request"
                    self._record(EventKind.STALLED, draft.now, request.request_id, reason, len(request.token_ids))
                return False
            draft.is_short_of_blocks = True
            reason = (
                f"{request.request_id} (priority {request.priority}) needs a block and none is free; "
                f"this one (priority {victim.priority}) comes last of {self.num_running} running"
            )
            self.preempt(victim.request_id, draft.now, reason)
        request.is_stalled = False
        return True

    def _add_share(self, request: Request, num_tokens: int, draft: _Draft) -> None:
        start = request.num_computed_tokens
        stop = start + num_tokens
        request.in_flight = True
        draft.token_budget -= num_tokens
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

    def _advance(self, request: Request, num_tokens: int) -> None:
        request.in_flight = False
        request.num_computed_tokens += num_tokens
        self._tables.remember(request)

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
            self._end(request)
            self._record(EventKind.FINISHED, now, request.request_id, reason.value, request.num_output_tokens, step)
        queue_time_s = None
        if is_first and request.first_scheduled_s is not None:
            queue_time_s = max(0.0, request.first_scheduled_s - request.arrival_s)
        return RequestOutput(
            request_id=request.request_id,
            token_ids=(token.token_id,),
            logprobs=() if token.logprob is None else (token.logprob,),
            top_logprobs=() if token.logprob is None else (token.top_logprobs,),
            finish_reason=reason,
            num_cached_tokens=request.num_cached_tokens,
            queue_time_s=queue_time_s,
            num_preemptions=request.num_preemptions,
        )

    def _fail(self, request: Request, error: str, now: float) -> RequestOutput:
        self._end(request)
        self._record(EventKind.FAILED, now, request.request_id, error, request.num_output_tokens)
        return _ended(request, FinishReason.ERROR, error)

    # Moves between the queues.

    def _new_request(self, request_id: RequestId, command: AddRequest) -> Request:
        sampling, config = command.sampling, self._config
        eos = () if sampling.ignore_eos else config.eos_token_ids
        seed = sampling.seed if sampling.seed is not None else derive_seed(config.root_seed, self.num_requests)
        root = PrefixRoot(config.model_revision, config.kv_dtype, adapter=None, salt=command.cache_salt)
        return Request(
            request_id=request_id,
            token_ids=list(command.prompt_token_ids),
            num_prompt_tokens=len(command.prompt_token_ids),
            sampling=sampling,
            seed=seed,
            end_token_ids=frozenset(eos).union(sampling.stop_token_ids),
            max_total_tokens=config.capacity.max_total_tokens,
            priority=command.priority,
            claim=self.num_requests,
            arrival_s=command.arrival_s,
            cache_root=self._hasher.root(root),
        )

    def _enqueue(self, request: Request) -> None:
        self._waiting.add(request)
        self.waiting_tokens += len(request.token_ids)

    def _dequeue(self, request: Request) -> None:
        self._waiting.remove(request)
        self.waiting_tokens -= len(request.token_ids)

    def _count_first_admission(self, request: Request, now: float) -> None:
        """A hit counts once in a request's life: finding its own blocks again after a preemption saves nothing new."""
        request.first_scheduled_s = now
        request.num_cached_tokens = request.num_computed_tokens
        self.prefix_query_tokens += request.num_prompt_tokens
        self.prefix_hit_tokens += request.num_cached_tokens
        self.queue_times.record(max(0.0, now - request.arrival_s), now)

    def _end(self, request: Request) -> None:
        if holds_blocks(request.state):
            self._running.remove(request)
            self._tables.give_back(request, self._fence())
        else:
            self._dequeue(request)
        request.in_flight = False
        request.move_to(RequestState.FINISHED)
        del self._requests[request.request_id]

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


def _ended(request: Request, reason: FinishReason, error: str | None = None) -> RequestOutput:
    return RequestOutput(
        request_id=request.request_id,
        finish_reason=reason,
        error=error,
        num_cached_tokens=request.num_cached_tokens,
        num_preemptions=request.num_preemptions,
    )
