"""The driver on targets that a test steers; on a real engine it is tested in test_engine_target.py."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.server.bench.fake_targets import CountingWatch, SlowTarget
from tidegate_server.bench.driver import Ending, Measurement, measure
from tidegate_server.bench.record import Outcome, RequestRecord
from tidegate_server.bench.target import Usage
from tidegate_server.bench.workloads import PlannedRequest, Segment


def planned(number: int, arrival_s: float = 0.0) -> list[PlannedRequest]:
    return [PlannedRequest(index, arrival_s, (Segment(f"own/{index}", 5),), 3) for index in range(number)]


def ticking() -> Callable[[], float]:
    """A clock that moves by one second each time it is read."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


def run(body: Callable[[SlowTarget], Coroutine[Any, Any, Measurement]], bad: int | None = None) -> Measurement:
    async def main() -> Measurement:
        return await body(SlowTarget(bad))

    return asyncio.run(main())


def test_every_request_gives_a_record_with_the_times_of_its_tokens() -> None:
    async def body(target: SlowTarget) -> Measurement:
        target.go_on.set()
        return await measure(planned(2), target, seed=0, clock=ticking(), interrupted=asyncio.Event())

    measured = run(body)
    assert measured.ending is Ending.COMPLETE
    assert [record.index for record in measured.records] == [0, 1]
    for record in measured.records:
        assert record.outcome is Outcome.FINISHED
        assert (record.num_prompt_tokens, record.num_output_tokens) == (5, 3)
        assert record.sent_s < record.token_times_s[0] < record.token_times_s[1] < record.end_s
    assert measured.duration_s == max(record.end_s for record in measured.records)


def test_prompts_are_those_of_the_plan() -> None:
    targets: list[SlowTarget] = []

    async def body(target: SlowTarget) -> Measurement:
        targets.append(target)
        target.go_on.set()
        return await measure(planned(3), target, seed=4, clock=ticking(), interrupted=asyncio.Event())

    run(body)
    run(body)
    assert targets[0].prompts == targets[1].prompts
    assert [len(prompt) for prompt in targets[0].prompts.values()] == [5, 5, 5]


def test_a_request_that_fails_is_a_record_and_the_others_go_on() -> None:
    async def body(target: SlowTarget) -> Measurement:
        target.go_on.set()
        return await measure(planned(3), target, seed=0, clock=ticking(), interrupted=asyncio.Event())

    measured = run(body, bad=1)
    assert [record.outcome for record in measured.records] == [Outcome.FINISHED, Outcome.FAILED, Outcome.FINISHED]
    assert measured.records[1].error == "it is bad"


def test_an_interruption_aborts_what_runs_and_keeps_what_came() -> None:
    async def body(target: SlowTarget) -> Measurement:
        interrupted = asyncio.Event()
        far = PlannedRequest(2, 1e9, (Segment("own/2", 5),), 3)
        running = asyncio.create_task(
            measure([*planned(2), far], target, seed=0, clock=ticking(), interrupted=interrupted)
        )
        await target.have_begun(2)
        interrupted.set()
        measured = await running
        assert sorted(target.aborted) == [0, 1]
        return measured

    measured = run(body)
    assert measured.ending is Ending.INTERRUPTED
    assert [record.outcome for record in measured.records] == [Outcome.UNFINISHED] * 2  # the third was never sent
    assert [record.num_output_tokens for record in measured.records] == [1, 1]


def test_the_duration_ends_a_run_that_would_go_on() -> None:
    async def body(target: SlowTarget) -> Measurement:
        return await measure(planned(2), target, seed=0, clock=ticking(), interrupted=asyncio.Event(), duration_s=0.01)

    measured = run(body)
    assert measured.ending is Ending.DURATION
    assert {record.outcome for record in measured.records} <= {Outcome.UNFINISHED}


def test_the_watch_sees_the_run_from_start_to_end() -> None:
    async def body(target: SlowTarget) -> Measurement:
        target.go_on.set()
        return await measure(
            planned(1), target, seed=0, clock=ticking(), interrupted=asyncio.Event(), watch=CountingWatch()
        )

    first, last = run(body).samples
    assert (first.at_s, first.num_running, last.num_running) == (0.0, 0, 1)
    assert last.at_s > 0.0


def test_each_end_is_told_once() -> None:
    ended: list[RequestRecord] = []

    async def body(target: SlowTarget) -> Measurement:
        target.go_on.set()
        return await measure(
            planned(3), target, seed=0, clock=ticking(), interrupted=asyncio.Event(), on_end=ended.append
        )

    records = run(body).records
    assert sorted(ended, key=lambda record: record.index) == list(records)


class BrokenTarget(SlowTarget):
    async def complete(self, *_: object, **__: object) -> Usage:
        raise ZeroDivisionError("a mistake of ours")


def test_a_mistake_of_ours_is_raised_and_no_record() -> None:
    async def main() -> None:
        await measure(planned(2), BrokenTarget(), seed=0, clock=ticking(), interrupted=asyncio.Event())

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
