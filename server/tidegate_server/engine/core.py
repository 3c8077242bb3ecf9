"""The engine in one process: commands in, one step at a time, outputs out."""

import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, assert_never

import structlog

from tidegate_contract.admin import ServerState
from tidegate_server.engine.admission import Capacity, QueueLimits
from tidegate_server.engine.audit import Discrepancy
from tidegate_server.engine.batch import Batch, LoadedRunner
from tidegate_server.engine.event_log import EventLog
from tidegate_server.engine.fault_boundary import FaultBoundary, StepResult, min_blocks_kept
from tidegate_server.engine.faults import FaultKind, one_line
from tidegate_server.engine.messages import (
    AbortRequest,
    AddRequest,
    FinishReason,
    PreemptionCount,
    RequestOutput,
    StepOutput,
)
from tidegate_server.engine.preemption_cost import MeasuredCost
from tidegate_server.engine.preemption_kind import PreemptionKind, PreemptionReason
from tidegate_server.engine.queue_forecast import QueueForecast
from tidegate_server.engine.recorder import Recorder
from tidegate_server.engine.scheduler import Scheduler, SchedulerConfig
from tidegate_server.engine.scheduling import StepScheduler
from tidegate_server.engine.snapshot import EngineSnapshot
from tidegate_server.engine.static_scheduler import StaticScheduler
from tidegate_server.engine.step_bound import IDLE, StepBound, StepUnderWay
from tidegate_server.engine.step_time import StepTimeModel, shape_of
from tidegate_server.settings import EngineSettings, SchedulerKind

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Clock = Callable[[], float]

# What looks at every waiting or running request is not computed anew in every step.
_QUEUE_EVERY_S: Final = 0.1


class Engine:
    """A scheduler and a runner. `apply` what arrived, then `step`; nothing here waits or knows of processes.

    Attributes:
        faults: what went wrong so far, by kind.
        recorder: of the last steps, for `recording_writer`.

    Args:
        revision: of the model; prefix-cache blocks are found within one revision only.
        clock: CLOCK_MONOTONIC seconds.
    """

    def __init__(
        self,
        runner: LoadedRunner,
        settings: EngineSettings,
        revision: str = "",
        clock: Clock = time.monotonic,
        events: EventLog | None = None,
    ) -> None:
        self._runner = runner
        self._settings = settings
        self._clock = clock
        config = scheduler_config(runner, settings, revision)
        self._step_time = StepTimeModel()
        self._bound = StepBound(self._step_time)
        self._scheduler = self._new_scheduler(config, events)
        self._forecast = QueueForecast(self._scheduler, config, config.step_budget(self._step_time))
        self.faults: Counter[FaultKind] = Counter()
        self._boundary = FaultBoundary(runner, self._scheduler.pool, min_blocks_kept(config.capacity), self.faults)
        self.recorder = Recorder(settings.num_recorded_steps)
        self._under_way = IDLE
        self._told_preemptions: Counter[tuple[PreemptionKind, PreemptionReason]] = Counter()
        self._num_audit_repairs = 0
        self._unsent: list[RequestOutput] = []  # of refused and aborted requests; leave with the next step
        self._swapped_out_blocks = self._swapped_in_blocks = 0
        self._p90_s, self._next_delay_s, self._queue_at_s = 0.0, 0.0, -_QUEUE_EVERY_S
        self._next_ttft_s = 0.0

    @property
    def events(self) -> EventLog:
        return self._scheduler.events

    @property
    def scheduler(self) -> StepScheduler:
        return self._scheduler

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_unfinished or bool(self._unsent)

    def apply(self, command: AddRequest | AbortRequest) -> None:
        """Take in one command."""
        now = self._clock()
        match command:
            case AddRequest():
                output = self._take_in(command, now)
                has_effect = output is None
            case AbortRequest():
                output = self._scheduler.abort(command.request_id, now)
                has_effect = output is not None
            case _:
                assert_never(command)
        if has_effect:
            self.recorder.arrived(command, now)
        if output is not None:
            self._unsent.append(output)

    def abort_all(self, reason: str) -> None:
        """End every request; the outputs leave with the next step."""
        for request_id in self._scheduler.unfinished_ids():
            output = self._scheduler.abort(request_id, self._clock(), reason)
            if output is not None:
                self._unsent.append(output)

    def step(self, before_run: Callable[[], None] = lambda: None) -> StepOutput | None:
        """Schedule, run, update; None when there was nothing to do and nothing to tell.

        Args:
            before_run: called when the step is scheduled, and `snapshot` tells of it.

        Raises:
            RunnerBroken: no request can run any more.
        """
        began_s = ended_s = self._clock()
        if self.has_work:
            self.recorder.begin(began_s)
        outputs, self._unsent = self._unsent, []
        outputs.extend(self._scheduler.expire(began_s))
        batch = self._scheduler.schedule(began_s)
        self.recorder.scheduled(batch)
        is_idle = not batch.scheduled
        if not is_idle:
            batch, result = self._run(batch, began_s, before_run)
            # Read once: from the recorded times a replay learns what this engine learnt.
            ended_s = self._clock()
            if batch.scheduled and not result.errors:  # what failed ran more than once, or not to its end
                self._step_time.observe(shape_of(batch.scheduled), ended_s - began_s)
            outputs.extend(self._scheduler.update(batch, result.sampled, ended_s, result.errors))
        self.recorder.end(outputs, ended_s, self._scheduler.pool.num_total)
        if is_idle and not outputs:
            return None
        self._forecast.stepped(batch, outputs, ended_s - began_s)
        num_tokens, num_decode_tokens = _num_tokens(batch)
        return StepOutput(
            step=batch.step,
            outputs=tuple(outputs),
            step_time_s=ended_s - began_s,
            num_prefill_tokens=num_tokens - num_decode_tokens,
            num_decode_tokens=num_decode_tokens,
            preemptions=self._untold_preemptions(),
        )

    def audit(self) -> tuple[Discrepancy, ...]:
        """Recount every block and repair what can be; gives what was wrong, and logs it."""
        found = self._scheduler.audit()
        for each in found:
            self._num_audit_repairs += each.is_repairable
            log.error(
                "block_books_wrong",
                kind=each.kind.value,
                block=each.block,
                detail=each.detail,
                next="the pool believes the block tables" if each.is_repairable else "nothing: it cannot be repaired",
            )
        return found

    def snapshot(self, state: ServerState = ServerState.READY) -> EngineSnapshot:
        """The engine's state in numbers, as of now."""
        scheduler, pool, now = self._scheduler, self._scheduler.pool, self._clock()
        host = scheduler.host.pool if scheduler.host is not None else None
        if now - self._queue_at_s >= _QUEUE_EVERY_S:
            self._p90_s, self._queue_at_s = scheduler.queue_time_p90_s(now), now
            self._next_delay_s = self._forecast.next_delay_s()
            self._next_ttft_s = self._forecast.next_ttft_s()
        return EngineSnapshot(
            state=state,
            step=scheduler.step,
            progress_at_s=now,
            step_bound_s=self._under_way.bound_s,
            step_num_requests=self._under_way.num_requests,
            step_num_tokens=self._under_way.num_tokens,
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            waiting_prompt_tokens=scheduler.waiting_tokens,
            kv_blocks_free=pool.num_free,
            kv_blocks_live=pool.num_live,
            kv_blocks_cached=pool.num_cached,
            kv_blocks_pending=pool.num_pending,
            kv_blocks_total=pool.num_total,
            host_blocks_held=host.num_live if host is not None else 0,
            host_blocks_cached=host.num_cached if host is not None else 0,
            host_blocks_total=host.num_total if host is not None else 0,
            block_size=self._runner.block_size,
            max_num_seqs=self._settings.max_num_seqs,
            queue_time_p90_s=self._p90_s,
            queue_delay_predicted_s=self._next_delay_s,
            ttft_predicted_s=self._next_ttft_s,
            prediction_error_ratio=self._forecast.error_ratio,
            step_time_error_ratio=self._step_time.error_ratio,
            num_preemptions=scheduler.num_preemptions,
            swapped_out_bytes=self._swapped_out_blocks * self._runner.block_bytes,
            swapped_in_bytes=self._swapped_in_blocks * self._runner.block_bytes,
            thrash_level=scheduler.thrash_level,
            num_requests=scheduler.num_requests,
            prefix_miss_tokens=scheduler.prefix_miss_tokens,
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
            prefix_host_hit_tokens=scheduler.prefix_host_hit_tokens,
            recomputed_tokens=scheduler.recomputed_tokens,
            faults_request=self.faults[FaultKind.REQUEST],
            faults_bad_logits=self.faults[FaultKind.BAD_LOGITS],
            faults_out_of_memory=self.faults[FaultKind.OUT_OF_MEMORY],
            faults_step=self.faults[FaultKind.STEP],
            faults_copy=self.faults[FaultKind.COPY],
            num_audit_repairs=self._num_audit_repairs,
        )

    def _new_scheduler(self, config: SchedulerConfig, events: EventLog | None) -> StepScheduler:
        match self._settings.scheduler:
            case SchedulerKind.CONTINUOUS:
                cost = MeasuredCost(self._step_time, self._runner.block_bytes, self._runner.swap_bytes_per_s)
                return Scheduler(config, events, secrets.token_bytes(32), self._step_time, cost)
            case SchedulerKind.STATIC:
                return StaticScheduler(config, events)
            case _:
                assert_never(self._settings.scheduler)

    def _untold_preemptions(self) -> tuple[PreemptionCount, ...]:
        """Those since the last message."""
        now = self._scheduler.preemptions.copy()
        untold, self._told_preemptions = now - self._told_preemptions, now
        return tuple(PreemptionCount(kind, reason, number) for (kind, reason), number in untold.items())

    def _take_in(self, command: AddRequest, now: float) -> RequestOutput | None:
        """Queue a request; what comes back is its end, when it cannot be."""
        try:
            prediction = self._forecast.predict(command, now)
            output = self._scheduler.add(command, now)
        except Exception as error:
            self.faults[FaultKind.REQUEST] += 1
            log.exception("request_failed", request_id=command.request_id, next="its client gets the error")
            self._scheduler.abort(command.request_id, now, "it could not be taken in")
            return RequestOutput(request_id=command.request_id, finish_reason=FinishReason.ERROR, error=one_line(error))
        if output is None:
            self._forecast.arrived(command, prediction)
        return output

    def _with_blocks_copied(self, batch: Batch, now: float) -> Batch:
        """Make the copies of a batch; gives what of it can be run."""
        if not batch.copies:
            return batch
        failed = self._runner.copy_blocks(batch.copies)
        self._swapped_out_blocks += len(batch.copies.swap_out) - len(failed.swap_out)
        self._swapped_in_blocks += len(batch.copies.swap_in) - len(failed.swap_in)
        if failed:
            self.faults[FaultKind.COPY] += 1
            batch = self._scheduler.without_lost(batch, failed, now)
            self.recorder.copies_failed(failed, batch)
        return batch

    def _run(self, batch: Batch, began_s: float, before_run: Callable[[], None]) -> tuple[Batch, StepResult]:
        """Copy blocks, then run; gives what was left of the batch when copies failed, and what it gave."""
        shape = shape_of(batch.scheduled)
        self._under_way = StepUnderWay(self._bound.bound_s(shape), shape.num_requests, shape.num_new_tokens)
        before_run()
        batch = self._with_blocks_copied(batch, began_s)
        result = self._boundary.run(batch) if batch.scheduled else StepResult((), {})
        self._under_way = IDLE
        self._bound.ran(shape)
        return batch, result


def _num_tokens(batch: Batch) -> tuple[int, int]:
    """Tokens that a batch computes, and how many of them are decodes: one at a time, after the first of the output."""
    num_tokens = num_decode_tokens = 0
    for share in batch.scheduled:
        num_tokens += share.num_new_tokens
        num_decode_tokens += share.num_new_tokens == 1 and share.num_output_tokens > 0
    return num_tokens, num_decode_tokens


def scheduler_config(runner: LoadedRunner, settings: EngineSettings, revision: str) -> SchedulerConfig:
    """The scheduler's part of the settings, together with what the runner measured."""
    return SchedulerConfig(
        capacity=Capacity(
            max_model_len=runner.max_model_len,
            num_kv_blocks=runner.num_kv_blocks,
            block_size=runner.block_size,
            vocab_size=runner.vocab_size,
        ),
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        eos_token_ids=runner.eos_token_ids,
        model_revision=revision,
        kv_dtype=runner.dtype,
        prefix_caching=settings.prefix_caching,
        root_seed=settings.seed,
        num_host_blocks=runner.num_host_blocks,
        preemption_mode=settings.preemption_mode,
        preemption_policy=settings.preemption_policy,
        max_age_s=settings.max_queue_age_s,
        step_time_target=settings.step_time_target,
        fairness=settings.fairness,
        queue_limits=QueueLimits(settings.max_queued_requests, settings.max_queued_tokens),
    )
