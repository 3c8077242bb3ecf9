"""Runs a workload against a target: sends each request at its time, and notes what comes back and when."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidegate_server.bench.engine_sample import EngineSample
from tidegate_server.bench.prompts import prompt_token_ids
from tidegate_server.bench.record import Outcome, RequestRecord
from tidegate_server.bench.target import Clock, EngineWatch, RequestFailed, Target
from tidegate_server.bench.workloads import PlannedRequest


class Ending(StrEnum):
    COMPLETE = "complete"  # every request ended
    DURATION = "stopped at --duration"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run, raw."""

    records: tuple[RequestRecord, ...]  # of the requests that were sent, in the workload's order
    samples: tuple[EngineSample, ...]  # in order of time; empty without a watch
    duration_s: float
    ending: Ending


async def measure(
    requests: Sequence[PlannedRequest],
    target: Target,
    *,
    seed: int,
    clock: Clock,
    interrupted: asyncio.Event,
    duration_s: float | None = None,
    watch: EngineWatch | None = None,
    on_end: Callable[[RequestRecord], None] = lambda record: None,
) -> Measurement:
    """Run the workload until each request has ended, `duration_s` has passed, or `interrupted` is set.

    Requests that still run then are aborted and count as unfinished.

    Args:
        requests: in order of arrival.
        seed: of the prompts' tokens.
        clock: seconds, monotonic.
        on_end: called with each request's record when it ends.

    Raises:
        StartError: the watch sees nothing.
    """
    samples: list[EngineSample] = []
    run = _Run(requests, target, seed, clock, on_end)
    async with contextlib.AsyncExitStack() as stack:
        if watch is not None:
            await stack.enter_async_context(watch.watching(samples.append, run.now_s))
        run.start()
        try:
            ending = await _until_the_end(run, interrupted, duration_s)
        finally:
            records = await run.stop()
    ends_s = [record.end_s for record in records]
    return Measurement(
        records=records,
        samples=tuple(samples),
        duration_s=max(ends_s, default=0.0) if ending is Ending.COMPLETE else run.now_s(),
        ending=ending,
    )


async def _until_the_end(run: "_Run", interrupted: asyncio.Event, duration_s: float | None) -> Ending:
    all_ended = asyncio.create_task(run.all_ended())
    told = asyncio.create_task(interrupted.wait())
    try:
        await asyncio.wait({all_ended, told}, timeout=duration_s, return_when=asyncio.FIRST_COMPLETED)
        if all_ended.done():
            await all_ended  # raises what was no request's failure but a mistake of ours
            return Ending.COMPLETE
        return Ending.INTERRUPTED if told.done() else Ending.DURATION
    finally:
        all_ended.cancel()
        told.cancel()
        await asyncio.gather(all_ended, told, return_exceptions=True)


class _Run:
    """The requests of one run, each in a task once its time has come."""

    def __init__(
        self,
        requests: Sequence[PlannedRequest],
        target: Target,
        seed: int,
        clock: Clock,
        on_end: Callable[[RequestRecord], None],
    ) -> None:
        self._requests = requests
        self._target = target
        self._seed = seed
        self._clock = clock
        self._on_end = on_end
        self._start_s: float | None = None
        self._serving: list[asyncio.Task[RequestRecord]] = []

    def start(self) -> None:
        self._start_s = self._clock()
        self._sending = asyncio.create_task(self._send())

    def now_s(self) -> float:
        """Seconds since the start; 0 before it."""
        return 0.0 if self._start_s is None else self._clock() - self._start_s

    async def all_ended(self) -> None:
        await asyncio.shield(self._sending)
        await asyncio.gather(*(asyncio.shield(task) for task in self._serving))

    async def stop(self) -> tuple[RequestRecord, ...]:
        """End what still runs; gives the records of all that was sent."""
        for task in (self._sending, *self._serving):
            task.cancel()
        await asyncio.gather(self._sending, *self._serving, return_exceptions=True)
        # A task that was cancelled before its first step has sent nothing.
        return tuple(task.result() for task in self._serving if not task.cancelled())

    async def _send(self) -> None:
        for request in self._requests:
            # Drawn here, one ahead of its time: all prompts of a long trace would not fit into the memory.
            prompt = prompt_token_ids(request, self._target.vocab_size, self._seed)
            await asyncio.sleep(max(0.0, request.arrival_s - self.now_s()))
            self._serving.append(asyncio.create_task(self._serve(request, prompt)))

    async def _serve(self, request: PlannedRequest, prompt: Sequence[int]) -> RequestRecord:
        sent_s = self.now_s()
        token_times_s: list[float] = []
        num_tokens = 0

        def note(count: int) -> None:
            nonlocal num_tokens
            num_tokens += count
            token_times_s.append(self.now_s())

        outcome, error, num_prompt_tokens = Outcome.FINISHED, None, len(prompt)
        try:
            usage = await self._target.complete(request.index, prompt, request.num_output_tokens, note)
            num_prompt_tokens, num_tokens = usage.num_prompt_tokens, usage.num_output_tokens
        except RequestFailed as failure:
            outcome, error = Outcome.FAILED, str(failure)
        except asyncio.CancelledError:
            outcome = Outcome.UNFINISHED  # only `stop` cancels, and it wants the record
        record = RequestRecord(
            index=request.index,
            arrival_s=request.arrival_s,
            sent_s=sent_s,
            token_times_s=tuple(token_times_s),
            end_s=self.now_s(),
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=num_tokens,
            outcome=outcome,
            error=error,
        )
        self._on_end(record)
        return record
