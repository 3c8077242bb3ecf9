"""The loop around the queue: side by side, none twice at once, none lost to an error."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from tidegate_operator.cluster import Key
from tidegate_operator.errors import Unavailable
from tidegate_operator.health import Health
from tidegate_operator.metrics import OperatorMetrics
from tidegate_operator.watched import Watched
from tidegate_operator.worker import Worker

A, B = Key("demo", "a"), Key("demo", "b")


class FastClock:
    """Runs ahead by a second whenever it is read, so that back-offs pass without waiting."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def run_until(worker: Worker, is_over: asyncio.Event) -> Awaitable[None]:
    async def run() -> None:
        loop = asyncio.create_task(worker.run())
        async with asyncio.timeout(10):
            await is_over.wait()
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)

    return run()


def make(reconcile: Callable[[Key], Awaitable[timedelta | None]]) -> Worker:
    return Worker(reconcile, OperatorMetrics(), monotonic=FastClock())


def test_one_key_that_fails_is_tried_again_and_others_go_on() -> None:
    async def scenario() -> list[Key]:
        seen: list[Key] = []
        is_over = asyncio.Event()

        async def reconcile(key: Key) -> timedelta | None:
            seen.append(key)
            if key == A and seen.count(A) < 3:
                raise Unavailable("not now")
            if seen.count(A) == 3 and B in seen:
                is_over.set()
            return None

        worker = make(reconcile)
        worker.trigger(A)
        worker.trigger(B)
        await run_until(worker, is_over)
        return seen

    assert asyncio.run(scenario()).count(B) == 1


def test_bug_is_logged_and_does_not_end_the_loop(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> bytes:
        is_over = asyncio.Event()
        calls = 0

        async def reconcile(_: Key) -> timedelta | None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise ZeroDivisionError("a bug of ours")
            is_over.set()
            return None

        worker = make(reconcile)
        worker.trigger(A)
        await run_until(worker, is_over)
        return worker.metrics.text()

    text = asyncio.run(scenario())
    assert b'tidegate_operator_reconciles_total{result="bug"} 1.0' in text
    assert "a bug of ours" in capsys.readouterr().out


def test_one_key_is_never_in_work_twice_but_two_keys_are_side_by_side() -> None:
    async def scenario() -> tuple[int, int]:
        working: list[Key] = []
        most_of_a, most = 0, 0
        is_over = asyncio.Event()
        rounds = 0

        async def reconcile(key: Key) -> timedelta | None:
            nonlocal most_of_a, most, rounds
            working.append(key)
            most_of_a, most = max(most_of_a, working.count(A)), max(most, len(working))
            worker.trigger(A)
            for _ in range(5):
                await asyncio.sleep(0)
            working.remove(key)
            rounds += 1
            if rounds > 20:
                is_over.set()
            return timedelta(seconds=1)

        worker = make(reconcile)
        worker.trigger(A)
        worker.trigger(B)
        await run_until(worker, is_over)
        return most_of_a, most

    assert asyncio.run(scenario()) == (1, 2)


def never(_: Key) -> Awaitable[timedelta | None]:
    raise AssertionError("not asked to")


def health(now: float, *, leading: bool = True, beat_at: float = 0.0) -> Health:
    worker = Worker(never, OperatorMetrics(), beat_at=beat_at)
    return Health(worker, Watched(), lambda: now, is_leading=leading)


def test_standby_is_alive_whatever_its_loop_does() -> None:
    assert health(1e6, leading=False).problem() is None


def test_leader_whose_loop_turns_is_alive() -> None:
    assert health(100.0, beat_at=95.0).problem() is None


def test_leader_whose_loop_stands_still_is_not() -> None:
    assert "has not turned" in str(health(100.0, beat_at=50.0).problem())


def test_leader_with_a_resource_that_nobody_looks_at_is_not() -> None:
    ill = health(1000.0, beat_at=999.0)
    ill.worker.queue.put(A, 1.0)
    assert "has waited" in str(ill.problem())


def test_leader_with_a_silent_watch_is_not() -> None:
    ill = health(1000.0, beat_at=999.0)
    ill.watched.compare([(A, {"metadata": {"uid": "u", "generation": 1}})], 900.0)
    assert "watch" in str(ill.problem())


def test_all_metrics_are_there_at_zero_from_the_start() -> None:
    text = OperatorMetrics().text().decode()
    for line in (
        'tidegate_operator_reconciles_total{result="ok"} 0.0',
        'tidegate_operator_scalings_total{direction="up"} 0.0',
        "tidegate_operator_is_leader 0.0",
        "tidegate_operator_queue_depth 0.0",
        "tidegate_operator_reconcile_seconds_count 0.0",
    ):
        assert line in text
