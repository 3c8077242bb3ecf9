"""What a step's scheduling costs in Python, taken on a runner that computes nothing."""

from collections.abc import Callable, Iterator

from tidegate_bench.engine.idle_runner import IdleRunner
from tidegate_bench.engine.result import SchedulingCost
from tidegate_server.engine.core import Engine, scheduler_config
from tidegate_server.engine.messages import AddRequest
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.engine.scheduler import Scheduler
from tidegate_server.settings import EngineSettings

NUM_RUNNING = (1, 16, 64)
NUM_WAITING = (0, 1000)
_NUM_PROMPT_TOKENS = 32
_BLOCK_SIZE = 16
_NUM_SETTLING_STEPS = 16


def scheduling_costs(num_steps: int, clock: Callable[[], float]) -> Iterator[SchedulingCost]:
    """One for each number of requests that decode and that wait.

    Args:
        num_steps: that are timed for each; the mean over them counts, since what a block costs falls on one in 16.
        clock: seconds, monotonic.
    """
    for num_running in NUM_RUNNING:
        for num_waiting in NUM_WAITING:
            yield SchedulingCost(
                num_running=num_running,
                num_waiting=num_waiting,
                num_steps=num_steps,
                scheduler_s=scheduler_s(num_running, num_waiting, num_steps, clock),
                step_s=engine_step_s(num_running, num_waiting, num_steps, clock),
            )


def scheduler_s(num_running: int, num_waiting: int, num_steps: int, clock: Callable[[], float]) -> float:
    """Mean seconds of `schedule` and `update` together, in steps that decode only."""
    runner, settings = _runner(num_running, num_steps), _settings(num_running)
    scheduler = Scheduler(scheduler_config(runner, settings, ""))
    for command in _commands(num_running + num_waiting, runner.max_model_len, clock()):
        scheduler.add(command, clock())

    def step() -> float:
        start_s = clock()
        batch = scheduler.schedule(start_s)
        scheduled_s = clock()
        sampled = runner.run(batch)
        run_s = clock()
        scheduler.update(batch, sampled, run_s)
        return scheduled_s - start_s + clock() - run_s

    return _mean_of_decodes(step, lambda: scheduler.num_running, num_running, num_steps)


def engine_step_s(num_running: int, num_waiting: int, num_steps: int, clock: Callable[[], float]) -> float:
    """Mean seconds of the engine's whole step, forecast and outputs included."""
    runner = _runner(num_running, num_steps)
    engine = Engine(runner, _settings(num_running), clock=clock)
    for command in _commands(num_running + num_waiting, runner.max_model_len, clock()):
        engine.apply(command)

    def step() -> float:
        start_s = clock()
        engine.step()
        return clock() - start_s

    return _mean_of_decodes(step, lambda: engine.scheduler.num_running, num_running, num_steps)


def _mean_of_decodes(step: Callable[[], float], running: Callable[[], int], num_running: int, num_steps: int) -> float:
    while running() < num_running:
        step()
    for _ in range(_NUM_SETTLING_STEPS):  # the last prompts are done too, and each way has been gone once
        step()
    return sum(step() for _ in range(num_steps)) / num_steps


def _runner(num_running: int, num_steps: int) -> IdleRunner:
    # Prompts enter one after the other, while those before them decode.
    blocks_each = 2 * (_NUM_PROMPT_TOKENS + num_running + num_steps) // _BLOCK_SIZE + 4
    return IdleRunner(num_kv_blocks=num_running * blocks_each, block_size=_BLOCK_SIZE)


def _settings(num_running: int) -> EngineSettings:
    # Whoever waits stays there: a seat is what is lacking, as it is where memory is not.
    return EngineSettings(max_num_seqs=num_running)


def _commands(number: int, max_model_len: int, now_s: float) -> Iterator[AddRequest]:
    for index in range(number):
        yield AddRequest(
            request_id=f"request-{index}",
            prompt_token_ids=[1000 + index] * _NUM_PROMPT_TOKENS,  # no two share a block
            sampling=SamplingParams(max_tokens=max_model_len, temperature=0.0, ignore_eos=True),
            arrival_s=now_s,
        )
