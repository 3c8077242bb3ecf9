from itertools import count

from tidegate_bench.engine.scheduling_cost import NUM_RUNNING, NUM_WAITING, engine_step_s, scheduler_s, scheduling_costs


def test_schedule_and_update_are_timed_and_the_runner_between_them_is_not() -> None:
    ticks = count()
    # One tick passes in each of the two.
    assert scheduler_s(2, 3, num_steps=4, clock=lambda: float(next(ticks))) == 2.0


def test_the_whole_step_takes_no_less() -> None:
    ticks = count()
    assert engine_step_s(2, 3, num_steps=4, clock=lambda: float(next(ticks))) >= 2.0


def test_each_number_that_runs_meets_each_number_that_waits() -> None:
    ticks = count()
    costs = scheduling_costs(1, lambda: float(next(ticks)))
    assert [(cost.num_running, cost.num_waiting) for cost in costs] == [
        (running, waiting) for running in NUM_RUNNING for waiting in NUM_WAITING
    ]
