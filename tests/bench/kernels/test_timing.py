import pytest

from tidegate_bench.kernels.timing import Contestant, Rounds, median_times_s


class Clock:
    """Time passes only in calls and pauses; notes who ran."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ran: list[str] = []

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def contestant(self, name: str, *times_s: float) -> Contestant:
        """Takes these times, call after call, and then always the last."""
        left = list(times_s)

        def call() -> None:
            self.ran.append(name)
            self.now_s += left.pop(0) if len(left) > 1 else left[0]

        return Contestant(call, lambda: self.ran.append(f"{name} steps up"))


def medians(clock: Clock, rounds: Rounds, *contestants: Contestant) -> list[float]:
    return median_times_s(contestants, rounds, lambda: clock.now_s, clock.sleep)


def test_contestants_take_turns_and_step_up_first() -> None:
    clock = Clock()
    rounds = Rounds(num_rounds=2, round_s=0.0, pause_s=0.5)
    medians(clock, rounds, clock.contestant("a", 1.0), clock.contestant("b", 1.0))
    assert clock.ran == ["a steps up", "a", "a", "b steps up", "b", "b"] * 2


def test_the_first_call_of_a_round_does_not_count() -> None:
    clock = Clock()
    assert medians(clock, Rounds(num_rounds=1, round_s=2.0), clock.contestant("a", 99.0, 1.0)) == [1.0]


def test_calls_are_repeated_until_the_round_is_long_enough() -> None:
    clock = Clock()
    medians(clock, Rounds(num_rounds=1, round_s=1.0), clock.contestant("a", 0.25))
    assert clock.ran.count("a") == 1 + 4


def test_a_time_is_the_median_of_calls_and_then_of_rounds() -> None:
    clock = Clock()
    # Warm-up and three calls a round; a neighbour takes the CPU in one call of each, and all through the third round.
    times_s = [0.0, 1.0, 9.0, 1.0, 0.0, 1.5, 8.0, 1.5, 0.0, 50.0]
    assert medians(clock, Rounds(num_rounds=3, round_s=10.5), clock.contestant("a", *times_s)) == pytest.approx([1.5])
