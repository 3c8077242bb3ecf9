"""An engine under load, on a machine whose step times are known and whose clock they move."""

import random

from tests.server.engine.counting_runner import CountingRunner
from tests.server.engine.driving import add_request
from tests.server.engine.step_times import Machine
from tidegate_server.engine.batch import Batch, SampledToken
from tidegate_server.engine.core import Engine
from tidegate_server.engine.step_time import shape_of
from tidegate_server.settings import EngineSettings


class TimedRunner(CountingRunner):
    """Lets the clock pass by what the machine takes for each step."""

    def __init__(self, machine: Machine, num_kv_blocks: int) -> None:
        super().__init__(num_kv_blocks=num_kv_blocks, max_model_len=4096)
        self.machine = machine
        self.now = 100.0

    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        self.now += self.machine.seconds(shape_of(batch.scheduled))
        return super().run(batch)


class Load:
    """An engine and the requests sent to it; requests come between steps, at the engine's own time."""

    def __init__(
        self,
        num_kv_blocks: int = 2000,
        max_num_seqs: int = 8,
        machine: Machine | None = None,
        step_time_target: float = 2.0,
    ) -> None:
        self.runner = TimedRunner(machine if machine is not None else Machine(noise=0.05), num_kv_blocks)
        settings = EngineSettings(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=128, step_time_target=step_time_target
        )
        self.engine = Engine(self.runner, settings, "rev", lambda: self.runner.now)
        self.chance = random.Random(5)
        self.num_sent = 0
        self.queue_times: dict[str, float] = {}

    def send(self, num_output_tokens: int | None = None, num_prompt_tokens: int | None = None) -> str:
        self.num_sent += 1
        request_id = f"r{self.num_sent}"
        length = num_prompt_tokens if num_prompt_tokens is not None else self.chance.randint(10, 60)
        # The runner counts on from the last token: far from those that make it fail.
        prompt = [self.chance.randint(1, 400) for _ in range(length)]
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
