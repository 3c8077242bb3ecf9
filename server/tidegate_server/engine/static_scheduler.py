"""Static batching: the baseline that continuous batching is measured against."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from tidegate_server.engine.admission import queue_refusal
from tidegate_server.engine.arrival import new_request, problem_with
from tidegate_server.engine.audit import Discrepancy, audit
from tidegate_server.engine.batch import Batch, BlockCopies, RequestId, SampledToken
from tidegate_server.engine.block_pool import BlockPool
from tidegate_server.engine.claim_queue import ClaimQueue
from tidegate_server.engine.deadlines import Deadlines
from tidegate_server.engine.event_log import EngineEvent, EventKind, EventLog
from tidegate_server.engine.host_pool import HostPool
from tidegate_server.engine.load_window import QueueTimeWindow
from tidegate_server.engine.messages import AddRequest, FinishReason, RequestOutput
from tidegate_server.engine.outputs import end_output, expired_output, token_output
from tidegate_server.engine.preemption_kind import PreemptionKind, PreemptionReason
from tidegate_server.engine.prefix_cache import BlockHash
from tidegate_server.engine.request import Request, RequestState, end_reason
from tidegate_server.engine.scheduler import SchedulerConfig
from tidegate_server.engine.scheduling import NO_ERRORS
from tidegate_server.engine.static_group import StaticGroup

_NO_CACHE_ROOT: Final = BlockHash(b"")


class StaticScheduler:
    """Runs one fixed group of requests after the other.

    A group is filled when none runs: waiting requests in order, up to `max_num_seqs` of them, as long as the blocks of
    their whole length fit. All prompts are computed, padded to the longest; then every step computes one token for each
    row, those that have finished included, until the last has. Nobody joins a group that runs.

    The cost is that of a padded batch, the tokens are those of a request alone: padding follows a row's prompt in
    blocks of its own, and later tokens overwrite it before any reads it. One step is in flight at a time, nothing is
    preempted, and there is no prefix cache.

    Source:
        Request-level scheduling as in Orca, Yu et al. 2022, §3.
    """

    def __init__(self, config: SchedulerConfig, events: EventLog | None = None) -> None:
        self._config = config
        self._requests: dict[RequestId, Request] = {}  # unfinished ones
        self._waiting = ClaimQueue()
        self._deadlines = Deadlines()
        self._group: StaticGroup | None = None
        self._num_groups = 0
        self._is_in_flight = False
        self.pool = BlockPool(config.capacity.num_kv_blocks)
        self.events = events if events is not None else EventLog()
        self.queue_times = QueueTimeWindow()
        self.step = 0  # of the last batch
        self.num_requests = 0  # taken in
        self.num_stale_results = 0
        self.waiting_tokens = 0
        # What never happens here.
        self.host: HostPool | None = None
        self.num_preemptions = 0
        self.thrash_level = 0.0
        self.preemptions: Counter[tuple[PreemptionKind, PreemptionReason]] = Counter()
        self.prefix_miss_tokens = self.prefix_hit_tokens = self.prefix_host_hit_tokens = self.recomputed_tokens = 0

    # What is there.

    @property
    def num_running(self) -> int:
        return len(self._requests) - len(self._waiting)

    @property
    def max_num_running(self) -> int:
        return self._config.max_num_running

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def unfinished_ids(self) -> tuple[RequestId, ...]:
        return tuple(self._requests)

    def queue_time_p90_s(self, now: float) -> float:
        return self.queue_times.p90_s((request.arrival_s for request in self._waiting), now)

    def audit(self) -> tuple[Discrepancy, ...]:
        rows = self._group.rows.values() if self._group is not None else ()
        return audit(self.pool, None, (row.block_table for row in rows))

    # Requests come and go.

    def add(self, command: AddRequest, now: float) -> RequestOutput | None:
        """Queue a request; the output is its refusal, when it can never run or too many wait already."""
        request_id, num_prompt_tokens = RequestId(command.request_id), len(command.prompt_token_ids)
        problem = problem_with(command, self._config.capacity, self._requests)
        if problem is not None:
            self._record(EventKind.REFUSED, now, request_id, problem, num_prompt_tokens)
            return RequestOutput(request_id=request_id, finish_reason=FinishReason.ERROR, error=problem, refused=True)
        full = queue_refusal(num_prompt_tokens, self.num_waiting, self.waiting_tokens, self._config.queue_limits)
        if full is not None:
            self._record(EventKind.REFUSED, now, request_id, full, num_prompt_tokens)
            return RequestOutput(request_id=request_id, finish_reason=FinishReason.ERROR, error=full, overloaded=True)
        request = new_request(
            command,
            self.num_requests,
            max_total_tokens=self._config.capacity.max_total_tokens,
            eos_token_ids=self._config.eos_token_ids,
            root_seed=self._config.root_seed,
            cache_root=_NO_CACHE_ROOT,
        )
        self.num_requests += 1
        self._requests[request_id] = request
        self._waiting.add(request)
        self._deadlines.add(request)
        self.waiting_tokens += num_prompt_tokens
        self._record(EventKind.ARRIVED, now, request_id, f"priority {request.priority}", num_prompt_tokens)
        return None

    def abort(self, request_id: str, now: float, reason: str = "the client left") -> RequestOutput | None:
        """End a request; its row is computed on with its group. None when there is no such request any more."""
        request = self._requests.get(RequestId(request_id))
        if request is None:
            return None
        self._end(request)
        self._record(EventKind.ABORTED, now, request.request_id, reason, request.num_output_tokens)
        self._dissolve_if_done()
        return end_output(request, FinishReason.ABORT)

    def expire(self, now: float) -> tuple[RequestOutput, ...]:
        """End those whose deadline passed while they waited; nothing of them was computed."""
        outputs: list[RequestOutput] = []
        for request in self._deadlines.expired(now):
            self._end(request)
            output = expired_output(request, now)
            self._record(EventKind.EXPIRED, now, request.request_id, output.error or "", request.num_prompt_tokens)
            outputs.append(output)
        return tuple(outputs)

    def preempt(
        self, request_id: str, now: float, reason: str, kind: PreemptionKind = PreemptionKind.RECOMPUTE
    ) -> None:
        """Nothing: a group runs to its end."""

    # A step.

    def schedule(self, now: float) -> Batch:
        """The next columns of the group's prompts, or the next token of every row."""
        if self._is_in_flight:
            return Batch(step=self.step, scheduled=())
        if self._group is None:
            self._group = self._next_group(now)
            if self._group is None:
                return Batch(step=self.step, scheduled=())
        group = self._group
        shares = group.next_shares(self._config.max_num_batched_tokens)
        for row in group.rows.values():
            row.in_flight = row.state is not RequestState.FINISHED
        self._is_in_flight = True
        self.step += 1
        reason = f"group {self._num_groups}: {len(group.rows)} rows, {self.num_running} of them unfinished"
        self._record(EventKind.STEP, now, None, reason, sum(share.num_new_tokens for share in shares))
        return Batch(step=self.step, scheduled=shares)

    def without_lost(self, batch: Batch, failed: BlockCopies, now: float) -> Batch:
        """The same: no batch of a static group has copies."""
        return batch

    def update(
        self, batch: Batch, sampled: Sequence[SampledToken], now: float, errors: Mapping[str, str] = NO_ERRORS
    ) -> tuple[RequestOutput, ...]:
        """Take in what a step gave; what was computed for padding and for finished rows is dropped."""
        if not batch.scheduled:
            return ()
        assert self._group is not None, "a group stays until its step is back"
        assert batch.step == self.step, f"step {batch.step} came back after step {self.step} began"
        self._is_in_flight = False
        token_of = {token.request_id: token for token in sampled}
        outputs: list[RequestOutput] = []
        for share in batch.scheduled:
            row = self._group.rows.get(share.request_id)
            if row is None or share.epoch != row.epoch:
                continue  # padding
            error = errors.get(share.request_id)
            if row.state is RequestState.FINISHED:
                if row.in_flight:
                    self.num_stale_results += 1
                    reason = f"of step {batch.step}; the request was aborted meanwhile"
                    self._record(EventKind.STALE_RESULT, now, row.request_id, reason, share.num_new_tokens)
            elif error is not None:
                outputs.append(self._fail(row, error, now))
            else:
                row.num_computed_tokens = share.stop
                if share.sampling is not None:
                    outputs.append(self._append(row, token_of[row.request_id], batch.step, now))
            row.in_flight = False
            if error is not None:
                # Computed again, it would make every step of the group fail.
                self._leave(self._group, row)
        self._dissolve_if_done()
        return tuple(outputs)

    def _append(self, row: Request, token: SampledToken, step: int, now: float) -> RequestOutput:
        """Add a drawn token to its request, which may end with it."""
        if row.state is RequestState.PREFILLING:
            row.move_to(RequestState.DECODING)
        row.token_ids.append(token.token_id)
        if row.num_output_tokens == 1:
            self._record(EventKind.FIRST_TOKEN, now, row.request_id, "", 1, step)
        reason = end_reason(row)
        if reason is not None:
            self._end(row)
            self._record(EventKind.FINISHED, now, row.request_id, reason.value, row.num_output_tokens, step)
        return token_output(row, token, reason)

    def _fail(self, row: Request, error: str, now: float) -> RequestOutput:
        self._end(row)
        self._record(EventKind.FAILED, now, row.request_id, error, row.num_output_tokens)
        return end_output(row, FinishReason.ERROR, error)

    # Groups.

    def _next_group(self, now: float) -> StaticGroup | None:
        """Seat the waiting requests that fit, strictly in order; None when nobody waits."""
        rows: list[Request] = []
        width = 0
        for request in self._waiting:
            wider = max(width, request.num_prompt_tokens)
            num_blocks = sum(self._num_blocks(row, wider) for row in (*rows, request))
            if len(rows) == self._config.max_num_running or num_blocks > self.pool.num_available:
                break
            rows.append(request)
            width = wider
        if not rows:
            return None
        self._num_groups += 1
        for row in rows:
            self._leave_queue(row)
            row.block_table = self.pool.take(self._num_blocks(row, width))
            row.move_to(RequestState.PREFILLING)
            row.epoch = self._num_groups
            row.first_scheduled_s = now
            self.queue_times.record(max(0.0, now - row.arrival_s), now)
            reason = f"one of {len(rows)} in group {self._num_groups}, padded to {width} tokens"
            self._record(EventKind.ADMITTED, now, row.request_id, reason, row.num_prompt_tokens, self.step + 1)
        return StaticGroup({row.request_id: row for row in rows}, width)

    def _num_blocks(self, request: Request, width: int) -> int:
        """Blocks of the longest output, or of the padded prompt where that is longer."""
        return -(-max(request.num_final_tokens, width) // self._config.capacity.block_size)

    def _leave(self, group: StaticGroup, row: Request) -> None:
        del group.rows[row.request_id]
        self.pool.release(row.block_table)
        row.block_table = []

    def _dissolve_if_done(self) -> None:
        """Give the group's blocks back once all are done and no step may touch them any more."""
        group = self._group
        if group is None or self._is_in_flight or not group.is_done:
            return
        for row in tuple(group.rows.values()):
            self._leave(group, row)
        self._group = None

    def _end(self, request: Request) -> None:
        if request.state is RequestState.WAITING:
            self._leave_queue(request)
        request.move_to(RequestState.FINISHED)
        del self._requests[request.request_id]

    def _leave_queue(self, request: Request) -> None:
        self._waiting.remove(request)
        self._deadlines.discard(request)
        self.waiting_tokens -= request.num_prompt_tokens

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
