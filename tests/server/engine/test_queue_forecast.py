"""Predictions of a whole engine under load, on a machine whose step times and clock are the test's."""

import random

import pytest

from tests.server.engine.counting_runner import BAD_TOKEN, CountingRunner
from tests.server.engine.driving import add_request
from tests.server.engine.step_times import Machine
from tidegate_server.engine.batch import Batch, SampledToken
from tidegate_server.engine.core import Engine
from tidegate_server.engine.messages import AbortRequest
from tidegate_server.engine.step_time import shape_of
from tidegate_server.settings import EngineSettings


class TimedRunner(CountingRunner):
    """Lets the clock pass by what the machine takes for each step."""

    def __init__(self, machine: Machine, num_kv_blocks: int) -> None:
        super().__init__(num_kv_blocks=num_kv_blocks)
        self.machine = machine
        self.now = 100.0

    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        self.now += self.machine.seconds(shape_of(batch.scheduled))
        return super().run(batch)


class Load:
    """An engine and the requests sent to it; requests come between steps, at the engine's own time."""

    def __init__(self, num_kv_blocks: int = 2000, max_num_seqs: int = 8, machine: Machine | None = None) -> None:
        self.runner = TimedRunner(machine if machine is not None else Machine(noise=0.05), num_kv_blocks)
        settings = EngineSettings(max_num_seqs=max_num_seqs, max_num_batched_tokens=128)
        self.engine = Engine(self.runner, settings, "rev", lambda: self.runner.now)
        self.chance = random.Random(5)
        self.num_sent = 0
        self.queue_times: dict[str, float] = {}

    def send(self, num_output_tokens: int | None = None) -> str:
        self.num_sent += 1
        request_id = f"r{self.num_sent}"
        prompt = [self.chance.randint(1, 900) for _ in range(self.chance.randint(10, 60))]
        num_tokens = num_output_tokens if num_output_tokens is not None else self.chance.randint(10, 40)
        self.engine.apply(add_request(request_id, prompt, num_tokens, arrival_s=self.runner.now))
        return request_id

    def step(self) -> None:
        output = self.engine.step()
        for each in output.outputs if output is not None else ():
            if each.queue_time_s is not None:
                self.queue_times[each.request_id] = each.queue_time_s

    def run(self) -> None:
        while self.engine.has_work:
            self.step()

    def predicted_s(self) -> float:
        self.runner.now += 1.0  # a prediction is made anew only now and then
        return self.engine.snapshot().queue_delay_predicted_s


def test_an_idle_engine_predicts_no_delay() -> None:
    load = Load()
    assert load.predicted_s() == 0.0
    load.send()
    load.run()
    assert load.predicted_s() == 0.0


@pytest.mark.parametrize("num_kv_blocks", [2000, 120], ids=["short of seats", "short of blocks"])
def test_under_overload_predictions_come_near_to_what_happens(num_kv_blocks: int) -> None:
    load = Load(num_kv_blocks)
    for _ in range(200):
        load.send()
        for _ in range(3):
            load.step()
    load.run()
    assert max(load.queue_times.values()) > 1.0
    assert load.engine.snapshot().prediction_error_ratio < 0.35


def test_the_gauge_says_what_the_next_request_meets() -> None:
    load = Load()
    for _ in range(60):
        load.send()
    for _ in range(40):
        load.step()
    predicted_s = load.predicted_s()
    last = load.send()
    load.run()
    assert load.queue_times[last] == pytest.approx(predicted_s, rel=0.35)


def test_a_lightly_loaded_engine_is_right_about_no_delay() -> None:
    load = Load()
    for _ in range(30):
        load.send()
        load.run()
    assert load.engine.snapshot().prediction_error_ratio < 0.1


def test_outputs_that_end_early_shorten_the_next_prediction() -> None:
    """Clients allow 200 tokens and leave after a few: soon nobody believes the 200."""
    load = Load(max_num_seqs=1)
    first = load.send(200)
    load.step()
    load.step()
    before_s = load.predicted_s()
    for _ in range(20):
        load.engine.apply(AbortRequest(request_id=first))
        first = load.send(200)
        for _ in range(4):
            load.step()
    assert load.predicted_s() < before_s / 10


def test_a_request_that_leaves_before_its_turn_is_no_measurement() -> None:
    load = Load(max_num_seqs=1)
    load.send(50)
    load.step()
    error = load.engine.snapshot().prediction_error_ratio
    load.engine.apply(AbortRequest(request_id=load.send()))
    load.run()
    assert load.engine.snapshot().prediction_error_ratio == error


def test_a_step_time_that_repeats_is_known() -> None:
    load = Load(machine=Machine())
    for _ in range(40):
        load.send()
        load.step()
    load.run()
    assert load.engine.snapshot().step_time_error_ratio < 0.05


def test_a_step_that_failed_is_no_measurement() -> None:
    load = Load(machine=Machine())
    for _ in range(10):
        load.send()
    load.run()
    error = load.engine.snapshot().step_time_error_ratio
    load.engine.apply(add_request("bad", [BAD_TOKEN], arrival_s=load.runner.now))
    load.run()
    assert load.engine.snapshot().step_time_error_ratio == error
