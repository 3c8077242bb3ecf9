"""Decides what each step computes: `schedule() -> Batch`, `update(batch, sampled) -> outputs`; integers only."""

import secrets
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate_server.engine.admission import NO_LIMITS, Capacity, QueueLimits, queue_refusal
from tidegate_server.engine.arrival import new_request, problem_with
from tidegate_server.engine.audit import Discrepancy
from tidegate_server.engine.batch import Batch, BlockCopies, RequestId, SampledToken, ScheduledRequest
from tidegate_server.engine.block_pool import BlockPool
from tidegate_server.engine.block_tables import BlockTables, Claim
from tidegate_server.engine.event_log import EngineEvent, EventKind, EventLog
from tidegate_server.engine.fair_share import FairShareQueue
from tidegate_server.engine.host_pool import HostPool
from tidegate_server.engine.load_window import QueueTimeWindow
from tidegate_server.engine.messages import AddRequest, FinishReason, RequestOutput
from tidegate_server.engine.outputs import end_output, expired_output, token_output
from tidegate_server.engine.preemption import Preemption, PreemptionCost
from tidegate_server.engine.preemption_cost import UNMEASURED
from tidegate_server.engine.preemption_kind import PreemptionKind, PreemptionReason
from tidegate_server.engine.prefix_cache import BlockHasher, PrefixRoot
from tidegate_server.engine.request import Request, RequestState, end_reason, holds_blocks
from tidegate_server.engine.roster import Roster
from tidegate_server.engine.scheduling import NO_ERRORS
from tidegate_server.engine.step_budget import StepBudget
from tidegate_server.engine.step_planner import Draft, PreemptionRules, StepPlanner
from tidegate_server.engine.step_time import StepTimeModel
from tidegate_server.engine.thrash import ThrashControl
from tidegate_server.settings import Fairness, PreemptionMode, PreemptionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What the scheduler must know; fixed for the engine's life."""

    capacity: Capacity
    max_num_seqs: int  # most requests that run at once
    max_num_batched_tokens: int  # most tokens that one step computes
    step_time_target: float = 0.0  # multiple of the decodes' own time that a step with prompts may take; 0: any
    eos_token_ids: tuple[int, ...] = ()
    model_revision: str = ""
    kv_dtype: str = ""
    prefix_caching: bool = True
    root_seed: int = 0
    num_host_blocks: int = 0
    preemption_mode: PreemptionMode = PreemptionMode.AUTO
    preemption_policy: PreemptionPolicy = PreemptionPolicy.CHEAPEST
    max_age_s: float = 60.0  # who has waited so long goes before every priority
    fairness: Fairness = Fairness.NONE
    queue_limits: QueueLimits = NO_LIMITS

    @property
    def max_num_running(self) -> int:
        """Every running request must get its one token in every step."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    def step_budget(self, model: StepTimeModel) -> StepBudget:
        """The budget of each step, by what `model` knows of step times."""
        return StepBudget(token_cap=self.max_num_batched_tokens, time_target=self.step_time_target, model=model)


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
        self.events = events if events is not None else EventLog()
        self._hasher = BlockHasher(hash_key if hash_key is not None else secrets.token_bytes(32))
        self._tables = BlockTables(
            capacity.num_kv_blocks, capacity.block_size, self._hasher, config.prefix_caching, config.num_host_blocks
        )
        self._shares = FairShareQueue() if config.fairness is Fairness.TENANT else None
        self._roster = Roster(self._tables, self._shares, config.max_age_s)
        budget = config.step_budget(step_time if step_time is not None else StepTimeModel())
        rules = PreemptionRules(
            mode=config.preemption_mode,
            policy=config.preemption_policy,
            cost=cost,
            block_size=capacity.block_size,
            prefix_caching=config.prefix_caching,
        )
        self._planner = StepPlanner(self._roster, self._tables, budget, rules, self.events)
        self._thrash = ThrashControl(config.max_num_running)
        self._num_preemptions_before = 0  # for blocks, at the last call of `schedule`
        self._in_flight: deque[int] = deque()  # steps whose results have not come back, oldest first
        self.queue_times = QueueTimeWindow()
        self.step = 0  # of the last batch
        self.num_requests = 0  # taken in
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
        return len(self._roster.running)

    @property
    def max_num_running(self) -> int:
        """Fewer than configured while requests preempt each other."""
        return min(self._config.max_num_running, self._thrash.limit)

    @property
    def num_waiting(self) -> int:
        return self._roster.num_waiting

    @property
    def waiting_tokens(self) -> int:
        """Tokens that waiting requests still have to compute."""
        return self._roster.num_waiting_tokens

    @property
    def preemptions(self) -> Counter[tuple[PreemptionKind, PreemptionReason]]:
        return self._planner.preemptions

    @property
    def num_preemptions(self) -> int:
        return self.preemptions.total()

    @property
    def _num_preemptions_for_blocks(self) -> int:
        """Those for want of memory; a seat given to a higher priority is no thrash."""
        return sum(num for (_, reason), num in self.preemptions.items() if reason is PreemptionReason.BLOCKS)

    @property
    def thrash_level(self) -> float:
        """Share of the recent work that preemptions caused to be done again."""
        return self._thrash.level

    @property
    def has_unfinished(self) -> bool:
        return len(self._roster) > 0

    def unfinished_ids(self) -> tuple[RequestId, ...]:
        return self._roster.ids

    def queue_time_p90_s(self, now: float) -> float:
        waiting_since = (request.arrival_s for request in self._roster if request.first_scheduled_s is None)
        return self.queue_times.p90_s(waiting_since, now)

    def audit(self) -> tuple[Discrepancy, ...]:
        return self._tables.audit(self._roster)

    # Requests come and go.

    def add(self, command: AddRequest, now: float) -> RequestOutput | None:
        """Queue a request; the output is its refusal, when it can never run or too many wait already."""
        request_id, config = RequestId(command.request_id), self._config
        num_prompt_tokens = len(command.prompt_token_ids)
        problem = problem_with(command, config.capacity, self._roster)
        is_full = False
        if problem is None and command.leader_id not in self._roster:  # choices of one prompt come in together
            problem = queue_refusal(num_prompt_tokens, self.num_waiting, self.waiting_tokens, config.queue_limits)
            is_full = problem is not None
        if problem is not None:
            self._record(EventKind.REFUSED, now, request_id, problem, num_prompt_tokens)
            return RequestOutput(
                request_id=request_id,
                finish_reason=FinishReason.ERROR,
                error=problem,
                refused=not is_full,
                overloaded=is_full,
            )
        request = new_request(
            command,
            claim=self.num_requests,
            max_total_tokens=config.capacity.max_total_tokens,
            eos_token_ids=config.eos_token_ids,
            root_seed=config.root_seed,
            cache_root=self._hasher.root(PrefixRoot(config.model_revision, config.kv_dtype, None, command.cache_salt)),
        )
        self.num_requests += 1
        self._record(EventKind.ARRIVED, now, request_id, f"priority {request.priority}", num_prompt_tokens)
        self._roster.enter(request, command.leader_id, now)
        return None

    def abort(self, request_id: str, now: float, reason: str = "the client left") -> RequestOutput | None:
        """End a request at any moment, in flight too; None when there is no such request any more."""
        request = self._roster.find(request_id)
        if request is None:
            return None
        self._roster.end(request, now)
        self._record(EventKind.ABORTED, now, request.request_id, reason, request.num_output_tokens)
        return end_output(request, FinishReason.ABORT)

    def expire(self, now: float) -> tuple[RequestOutput, ...]:
        """End those whose deadline passed while they waited; nothing of them was computed."""
        outputs: list[RequestOutput] = []
        while expired := self._roster.expired(now):  # the next choice of an expired prompt may have expired too
            for request in expired:
                self._roster.end(request, now)
                output = expired_output(request, now)
                self._record(EventKind.EXPIRED, now, request.request_id, output.error or "", request.num_prompt_tokens)
                outputs.append(output)
        return tuple(outputs)

    def preempt(
        self, request_id: str, now: float, reason: str, kind: PreemptionKind = PreemptionKind.RECOMPUTE
    ) -> None:
        """Take a request's blocks at any moment, in flight too; it keeps its output and returns before new ones.

        Args:
            kind: with TAIL it keeps the first half; SWAP without room in host memory gives up everything instead.
        """
        request = self._roster.find(request_id)
        if request is None or not holds_blocks(request.state):
            return
        preemption = Preemption.of_everything(request.request_id)
        if kind is PreemptionKind.SWAP and self._tables.num_host_blocks_for(request) is not None:
            preemption = replace(preemption, kind=kind)
        elif kind is PreemptionKind.TAIL and len(request.block_table) > 1:
            preemption = replace(preemption, kind=kind, num_kept_blocks=len(request.block_table) // 2)
        self._planner.preempt(request, preemption, PreemptionReason.FORCED, reason, self.step, now)

    def change_priority(self, request_id: str, priority: int, now: float) -> None:
        """Serve a request earlier or later from now on; unknown ones are ignored."""
        request = self._roster.find(request_id)
        if request is not None:
            self._roster.change_priority(request, priority, now)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache; requests keep the blocks that they hold."""
        self._tables.forget_all()

    # A step.

    def schedule(self, now: float) -> Batch:
        """Put the next step together; its batch is empty when nobody can go on."""
        elder = self._roster.waiting.promote(now)
        if elder is not None:
            self._record(EventKind.AGED, now, elder.request_id, "it has waited too long", len(elder.token_ids))
        draft = Draft(self.step + 1, now, self.max_num_running)
        self._planner.plan(draft)
        for request, claim in draft.admitted:
            self._count_claim(request, claim, draft)
        self.recomputed_tokens += draft.num_recomputed
        num_computed = draft.planned.num_new_tokens - draft.num_recomputed
        num_copied_back = sum(claim.num_on_host for request, claim in draft.admitted if request.num_preemptions > 0)
        num_preempted = self._num_preemptions_for_blocks - self._num_preemptions_before
        self._num_preemptions_before += num_preempted
        self._thrash.on_step(num_computed, draft.num_recomputed + num_copied_back, num_preempted, self.num_running)
        if not draft.shares:
            return Batch(step=self.step, scheduled=())
        preempted, self._planner.preempted = tuple(self._planner.preempted), []
        self.step = self._roster.fence = draft.step
        self._in_flight.append(draft.step)
        why = f"{len(draft.shares)} requests of {self.num_running} running, {self.num_waiting} waiting"
        self._record(EventKind.STEP, now, None, why, draft.planned.num_new_tokens)
        return Batch(draft.step, tuple(draft.shares), preempted, self._tables.take_copies())

    def without_lost(self, batch: Batch, failed: BlockCopies, now: float) -> Batch:
        """What of a batch can be run when some of its copies failed: who reads their blocks computes them again."""
        lost = self._tables.lose(batch.copies, failed)
        self._record(EventKind.COPY_FAILED, now, None, f"{len(lost.device)} blocks, {len(lost.host)} on the host", 0)
        for request in self._roster:
            if lost.device.isdisjoint(request.block_table) and lost.host.isdisjoint(request.host_table):
                continue
            everything = Preemption.of_everything(request.request_id)
            why = "a copy of its blocks failed"
            self._planner.preempt(request, everything, PreemptionReason.FORCED, why, self.step, now)
        return self.without_stale(batch)

    def without_stale(self, batch: Batch) -> Batch:
        """A batch without those who were preempted or aborted since it was put together."""
        return replace(batch, scheduled=tuple(share for share in batch.scheduled if self._roster.current(share)))

    def update(
        self, batch: Batch, sampled: Sequence[SampledToken], now: float, errors: Mapping[str, str] = NO_ERRORS
    ) -> tuple[RequestOutput, ...]:
        """Take in what a step gave; results of requests that were aborted or preempted meanwhile are dropped.

        Args:
            errors: by request id, for those of the batch that could not be computed.
        """
        oldest = self._in_flight.popleft()
        assert oldest == batch.step, f"step {batch.step} came back before step {oldest}"
        if not self._in_flight:
            self._roster.fence = None
        self._tables.retire(batch.step)
        token_of = {token.request_id: token for token in sampled}
        outputs = (self._take_in(share, token_of, errors, batch.step, now) for share in batch.scheduled)
        return tuple(output for output in outputs if output is not None)

    def _take_in(
        self,
        share: ScheduledRequest,
        token_of: Mapping[RequestId, SampledToken],
        errors: Mapping[str, str],
        step: int,
        now: float,
    ) -> RequestOutput | None:
        """What a step gave one request; None: a part of its prompt, or nothing any more."""
        request = self._roster.current(share)
        if request is None:
            self.num_stale_results += 1
            why = f"of step {step}; the request was aborted or preempted meanwhile"
            self._record(EventKind.STALE_RESULT, now, share.request_id, why, share.num_new_tokens)
            return None
        error = errors.get(share.request_id)
        if error is not None:
            self._roster.end(request, now)
            self._record(EventKind.FAILED, now, request.request_id, error, request.num_output_tokens)
            return end_output(request, FinishReason.ERROR, error)
        request.in_flight = False
        request.num_computed_tokens += share.num_new_tokens
        self._tables.remember(request)
        if request.followers and request.num_computed_tokens >= request.num_prompt_tokens:
            self._roster.release_followers(request, now)
        return self._append(request, token_of[share.request_id], step, now) if share.sampling is not None else None

    def _append(self, request: Request, token: SampledToken, step: int, now: float) -> RequestOutput:
        """Add a drawn token to its request, which may end with it."""
        if request.state is RequestState.PREFILLING:
            request.move_to(RequestState.DECODING)
        request.token_ids.append(token.token_id)
        if self._shares is not None:
            self._shares.charge(request.tenant, 0, 1)
        if request.num_output_tokens == 1:
            self._record(EventKind.FIRST_TOKEN, now, request.request_id, "", 1, step)
        reason = end_reason(request)
        if reason is not None:
            self._roster.end(request, now)
            self._record(EventKind.FINISHED, now, request.request_id, reason.value, request.num_output_tokens, step)
        return token_output(request, token, reason)

    def _count_claim(self, request: Request, claim: Claim, draft: Draft) -> None:
        """A hit counts once in a request's life: finding its own blocks again after a preemption saves nothing new."""
        num_found = claim.num_on_device + claim.num_on_host
        why = f"{claim.num_on_device} tokens found on the device, {claim.num_on_host} in host memory"
        if request.num_preemptions == 0:
            request.first_scheduled_s = draft.now
            request.num_cached_tokens = num_found
            self.prefix_hit_tokens += claim.num_on_device
            self.prefix_host_hit_tokens += claim.num_on_host
            self.prefix_miss_tokens += request.num_prompt_tokens - num_found
            self.queue_times.record(max(0.0, draft.now - request.arrival_s), draft.now)
        else:
            why = f"back after preemption {request.num_preemptions}; {why}"
        self._record(EventKind.ADMITTED, draft.now, request.request_id, why, len(request.token_ids), draft.step)

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
