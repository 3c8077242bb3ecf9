"""The engine in one process: commands in, one step at a time, outputs out."""

import secrets
import time
from collections.abc import Callable
from typing import Final, assert_never

import structlog

from tidegate_contract.admin import ServerState
from tidegate_server.engine.admission import Capacity, QueueLimits
from tidegate_server.engine.batch import Batch, LoadedRunner, RunnerBroken, SampledToken
from tidegate_server.engine.event_log import EventLog
from tidegate_server.engine.messages import AbortRequest, AddRequest, RequestOutput, StepOutput
from tidegate_server.engine.preemption_cost import MeasuredCost
from tidegate_server.engine.queue_forecast import QueueForecast
from tidegate_server.engine.scheduler import Scheduler, SchedulerConfig
from tidegate_server.engine.snapshot import EngineSnapshot
from tidegate_server.engine.step_budget import StepBudget
from tidegate_server.engine.step_time import StepTimeModel, shape_of
from tidegate_server.errors import BadLogits
from tidegate_server.settings import EngineSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Clock = Callable[[], float]

# So many steps in a row in which nothing could be run: the fault is the engine's, not the requests'.
MAX_FAILED_STEPS: Final = 5
# What looks at every waiting or running request is not computed anew in every step.
_QUEUE_EVERY_S: Final = 0.1


class Engine:
    """A scheduler and a runner. `apply` what arrived, then `step`; nothing here waits or knows of processes.

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
        cost = MeasuredCost(self._step_time, runner.block_bytes, runner.swap_bytes_per_s)
        self._scheduler = Scheduler(config, events, secrets.token_bytes(32), self._step_time, cost)
        self._forecast = QueueForecast(self._scheduler, config, step_budget(settings, self._step_time))
        self._unsent: list[RequestOutput] = []  # of refused and aborted requests; leave with the next step
        self._num_failed_steps = 0  # in a row
        self._swapped_out_blocks = self._swapped_in_blocks = 0
        self._p90_s, self._next_delay_s, self._queue_at_s = 0.0, 0.0, -_QUEUE_EVERY_S

    @property
    def events(self) -> EventLog:
        return self._scheduler.events

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_unfinished or bool(self._unsent)

    def apply(self, command: AddRequest | AbortRequest) -> None:
        """Take in one command."""
        now = self._clock()
        match command:
            case AddRequest():
                prediction = self._forecast.predict(command, now)
                output = self._scheduler.add(command, now)
                if output is None:
                    self._forecast.arrived(command, prediction)
            case AbortRequest():
                output = self._scheduler.abort(command.request_id, now)
            case _:
                assert_never(command)
        if output is not None:
            self._unsent.append(output)

    def abort_all(self, reason: str) -> None:
        """End every request; the outputs leave with the next step."""
        for request_id in self._scheduler.unfinished_ids():
            output = self._scheduler.abort(request_id, self._clock(), reason)
            if output is not None:
                self._unsent.append(output)

    def step(self) -> StepOutput | None:
        """Schedule, run, update; None when there was nothing to do and nothing to tell.

        Raises:
            RunnerBroken: no request can run any more.
        """
        started_s = self._clock()
        outputs, self._unsent = self._unsent, []
        outputs.extend(self._scheduler.expire(started_s))
        batch = self._scheduler.schedule(started_s)
        if batch.scheduled:
            batch = self._with_blocks_copied(batch)
            sampled, errors = self._run(batch) if batch.scheduled else ((), {})
            outputs.extend(self._scheduler.update(batch, sampled, self._clock(), errors))
        elif not outputs:
            return None
        step_time_s = self._clock() - started_s
        if batch.scheduled and not errors:  # what failed ran more than once, or not to its end
            self._step_time.observe(shape_of(batch.scheduled), step_time_s)
        self._forecast.stepped(batch, outputs, step_time_s)
        return StepOutput(
            step=batch.step,
            outputs=tuple(outputs),
            step_time_s=step_time_s,
            num_new_tokens=sum(share.num_new_tokens for share in batch.scheduled),
            num_preempted=len(batch.preempted),
        )

    def snapshot(self, state: ServerState = ServerState.READY) -> EngineSnapshot:
        """The engine's state in numbers, as of now."""
        scheduler, pool, now = self._scheduler, self._scheduler.pool, self._clock()
        if now - self._queue_at_s >= _QUEUE_EVERY_S:
            self._p90_s, self._queue_at_s = scheduler.queue_time_p90_s(now), now
            self._next_delay_s = self._forecast.next_delay_s()
        return EngineSnapshot(
            state=state,
            step=scheduler.step,
            progress_at_s=now,
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            waiting_prompt_tokens=scheduler.waiting_tokens,
            kv_blocks_free=pool.num_free,
            kv_blocks_live=pool.num_live,
            kv_blocks_cached=pool.num_cached,
            kv_blocks_pending=pool.num_pending,
            kv_blocks_total=pool.num_total,
            block_size=self._runner.block_size,
            max_num_seqs=self._settings.max_num_seqs,
            queue_time_p90_s=self._p90_s,
            queue_delay_predicted_s=self._next_delay_s,
            prediction_error_ratio=self._forecast.error_ratio,
            step_time_error_ratio=self._step_time.error_ratio,
            num_preemptions=scheduler.num_preemptions,
            swapped_out_bytes=self._swapped_out_blocks * self._runner.block_bytes,
            swapped_in_bytes=self._swapped_in_blocks * self._runner.block_bytes,
            thrash_level=scheduler.thrash_level,
            num_requests=scheduler.num_requests,
            prefix_query_tokens=scheduler.prefix_miss_tokens
            + scheduler.prefix_hit_tokens
            + scheduler.prefix_host_hit_tokens,
            prefix_hit_tokens=scheduler.prefix_hit_tokens + scheduler.prefix_host_hit_tokens,
        )

    def _with_blocks_copied(self, batch: Batch) -> Batch:
        """Make the copies of a batch; gives what of it can be run."""
        if not batch.copies:
            return batch
        failed = self._runner.copy_blocks(batch.copies)
        self._swapped_out_blocks += len(batch.copies.swap_out) - len(failed.swap_out)
        self._swapped_in_blocks += len(batch.copies.swap_in) - len(failed.swap_in)
        return self._scheduler.without_lost(batch, failed, self._clock()) if failed else batch

    def _run(self, batch: Batch) -> tuple[tuple[SampledToken, ...], dict[str, str]]:
        """Run the batch; if that fails, find out whose fault it is. Gives tokens, and errors by request id."""
        sampled, failures = run_apart(self._runner, batch)
        errors = {request_id: _told(failure) for request_id, failure in failures.items()}
        # Bad logits are what a forward pass gave: it ran, and a prompt that the model overflows on, sent again and
        # again, must not end the engine for everybody.
        has_run = len(errors) < len(batch.scheduled) or any(isinstance(each, BadLogits) for each in failures.values())
        if has_run:
            self._num_failed_steps = 0
            return sampled, errors
        self._num_failed_steps += 1
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            last = next(reversed(errors.values()))
            raise RunnerBroken(f"every request failed in {MAX_FAILED_STEPS} steps in a row, the last with: {last}")
        return sampled, errors


def run_apart(runner: LoadedRunner, batch: Batch) -> tuple[tuple[SampledToken, ...], dict[str, Exception]]:
    """Run a batch such that one bad request fails alone: first whole, and if that fails, one request at a time.

    Running a request's share again writes the same values to the same slots, so what the failed try left is harmless.

    Returns:
        The tokens, and by request id what failed.

    Raises:
        RunnerBroken: passed on; trying again cannot help.
    """
    if len(batch.scheduled) > 1:
        try:
            return _checked_run(runner, batch), {}
        except RunnerBroken:
            raise
        except Exception as error:
            log.exception(
                "step_failed", step=batch.step, error=one_line(error), next="each of its requests runs again, alone"
            )
    sampled: list[SampledToken] = []
    failures: dict[str, Exception] = {}
    for share in batch.scheduled:
        alone = Batch(step=batch.step, scheduled=(share,), preempted=batch.preempted)
        try:
            sampled.extend(_checked_run(runner, alone))
        except RunnerBroken:
            raise
        except Exception as error:
            failures[share.request_id] = error
            log.exception(
                "request_failed", request_id=share.request_id, step=batch.step, next="its client gets the error"
            )
    return tuple(sampled), failures


def _told(failure: Exception) -> str:
    """A request's failure in words for its client."""
    return failure.message if isinstance(failure, BadLogits) else one_line(failure)


def _checked_run(runner: LoadedRunner, batch: Batch) -> tuple[SampledToken, ...]:
    sampled = runner.run(batch)
    wanted = [share.request_id for share in batch.scheduled if share.sampling is not None]
    given = [token.request_id for token in sampled]
    if given != wanted:
        raise RuntimeError(f"the runner drew tokens for {given} instead of {wanted}")
    return sampled


def one_line(error: BaseException) -> str:
    """An exception as one line: its type, and the first line of its message."""
    message = str(error).strip()
    name = type(error).__name__
    return f"{name}: {message.splitlines()[0]}" if message else name


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


def step_budget(settings: EngineSettings, model: StepTimeModel) -> StepBudget:
    """The budget of each step, as the settings have it."""
    return StepBudget(
        token_cap=settings.max_num_batched_tokens,
        time_target=settings.step_time_target,
        model=model,
    )
