"""Times functions in turn, in short rounds, so that what disturbs the machine meets each of them alike."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Contestant:
    """One function to time."""

    call: Callable[[], object]
    step_up: Callable[[], object] = lambda: None  # before each of its rounds, not timed


@dataclass(frozen=True, slots=True)
class Rounds:
    """How long and how often each contestant runs."""

    num_rounds: int = 7
    round_s: float = 0.02  # calls are repeated until they took so long together
    pause_s: float = 0.01  # before a round: threads of whoever ran before give up waiting for work


def median_times_s(
    contestants: Sequence[Contestant],
    rounds: Rounds,
    now_s: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[float]:
    """The time of a call of each contestant: the median over rounds of the median over a round's calls.

    The first call of a round does not count: threads wake up in it.
    """
    medians: list[list[float]] = [[] for _ in contestants]
    for _ in range(rounds.num_rounds):
        for contestant, found in zip(contestants, medians, strict=True):
            contestant.step_up()
            sleep(rounds.pause_s)
            contestant.call()
            found.append(statistics.median(_times_s(contestant.call, rounds.round_s, now_s)))
    return [statistics.median(found) for found in medians]


def _times_s(call: Callable[[], object], round_s: float, now_s: Callable[[], float]) -> list[float]:
    times_s: list[float] = []
    start = before = now_s()
    while not times_s or before - start < round_s:
        call()
        after = now_s()
        times_s.append(after - before)
        before = after
    return times_s
