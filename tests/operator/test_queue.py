"""The queue under random order: each key waits at most once, works at most once, and none is lost."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidegate_operator.cluster import Key
from tidegate_operator.queue import MAX_BACK_OFF_S, KeyQueue

A, B = Key("demo", "a"), Key("demo", "b")
KEYS = st.sampled_from([Key("demo", name) for name in "abcd"])
DELAYS = st.integers(min_value=0, max_value=5).map(float)


class QueueMachine(RuleBasedStateMachine):
    """Beside the queue stands the simplest thing that could be right: which keys must still be looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = KeyQueue()
        self.now = 0.0
        self.owed: dict[Key, float] = {}  # latest time by which a look must start
        self.in_work: set[Key] = set()

    @rule(key=KEYS, delay=DELAYS)
    def put(self, key: Key, delay: float) -> None:
        self.queue.put(key, self.now + delay)
        self.owed[key] = min(self.owed.get(key, self.now + delay), self.now + delay)

    @rule(seconds=DELAYS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        key = self.queue.take(self.now)
        if key is None:
            assert not [k for k, due in self.owed.items() if due <= self.now and k not in self.in_work]
            return
        assert key not in self.in_work
        assert self.owed.pop(key) <= self.now
        self.in_work.add(key)

    @rule(key=KEYS, recheck=st.none() | DELAYS)
    def done(self, key: Key, recheck: float | None) -> None:
        if key not in self.in_work:
            return
        self.in_work.remove(key)
        self.queue.done(key, None if recheck is None else self.now + recheck)
        if recheck is not None:
            self.owed[key] = min(self.owed.get(key, self.now + recheck), self.now + recheck)

    @rule(key=KEYS)
    def failed(self, key: Key) -> None:
        if key not in self.in_work:
            return
        self.in_work.remove(key)
        delay = self.queue.failed(key, self.now)
        assert 0 < delay <= MAX_BACK_OFF_S
        self.owed[key] = min(self.owed.get(key, self.now + delay), self.now + delay)

    @invariant()
    def nothing_is_lost_and_nothing_is_twice(self) -> None:
        assert len(self.queue) == len(self.owed.keys() | self.in_work)

    @invariant()
    def it_wakes_for_the_first_that_is_due(self) -> None:
        waiting = [due for key, due in self.owed.items() if key not in self.in_work]
        assert self.queue.next_due() == min(waiting, default=None)


TestQueueMachine = QueueMachine.TestCase


def test_many_triggers_become_one_look() -> None:
    queue = KeyQueue()
    for _ in range(5):
        queue.put(A, 0.0)
    assert queue.take(0.0) == A
    assert queue.take(0.0) is None


def test_a_trigger_during_work_brings_the_key_back() -> None:
    queue = KeyQueue()
    queue.put(A, 0.0)
    queue.take(0.0)
    queue.put(A, 1.0)
    assert queue.take(5.0) is None
    queue.done(A, None)
    assert queue.take(5.0) == A


def test_longest_due_comes_first() -> None:
    queue = KeyQueue()
    queue.put(A, 2.0)
    queue.put(B, 1.0)
    assert queue.take(3.0) == B


def test_failures_back_off_and_success_forgets_them() -> None:
    queue, delays = KeyQueue(), []
    now = 0.0
    for _ in range(10):
        queue.put(A, now)
        queue.take(now)
        delays.append(queue.failed(A, now))
        now += 100
        queue.take(now)
        if len(delays) == 8:
            queue.done(A, None)
        else:
            queue.failed(A, now)
        now += 100
    assert delays[0] == 1.0
    assert delays == sorted(delays[:8]) + delays[8:]
    assert delays[7] == MAX_BACK_OFF_S
    assert delays[8] == 1.0


@pytest.mark.parametrize("failures", [1, 5, 100])
def test_back_off_is_bounded(failures: int) -> None:
    queue, now, delay = KeyQueue(), 0.0, 0.0
    queue.put(A, now)
    for _ in range(failures):
        assert queue.take(now) == A
        delay = queue.failed(A, now)
        now += delay
    assert delay <= MAX_BACK_OFF_S
