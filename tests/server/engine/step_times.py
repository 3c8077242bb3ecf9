"""Machines whose steps take a known time, and models that have watched them."""

import random
from dataclasses import dataclass, field

from tidegate_server.engine.step_time import StepShape, StepTimeModel


@dataclass
class Machine:
    """Seconds of a step by what it computes; the defaults are about those of a small model on two cores."""

    constant: float = 0.010
    request: float = 0.0003
    new_token: float = 0.002
    context_token: float = 1e-6
    attended_token: float = 5e-7
    noise: float = 0.0  # most that a step is off, as a share of its time
    slowdown: float = 1.0
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def seconds(self, shape: StepShape) -> float:
        exact = (
            self.constant
            + self.request * shape.num_requests
            + self.new_token * shape.num_new_tokens
            + self.context_token * shape.num_context_tokens
            + self.attended_token * shape.num_attended_tokens
        )
        return exact * self.slowdown * self.chance.uniform(1 - self.noise, 1 + self.noise)


def decodes(num_requests: int, context: int) -> StepShape:
    """A step in which so many requests decode, each behind so many tokens."""
    return StepShape(num_requests, num_requests, num_requests * context, num_requests * context)


def random_step(chance: random.Random) -> StepShape:
    """A step as they come under load: some decodes, and in one of three a piece of a prompt."""
    step = decodes(chance.randint(1, 32), chance.randint(16, 1024))
    if chance.random() < 1 / 3:
        step = step.plus(chance.randint(0, 2048), chance.randint(2, 256))
    return step


def watch(model: StepTimeModel, machine: Machine, num_steps: int) -> None:
    chance = random.Random(11)
    for _ in range(num_steps):
        step = random_step(chance)
        model.observe(step, machine.seconds(step))


def model_of(machine: Machine, num_steps: int = 2000) -> StepTimeModel:
    model = StepTimeModel()
    watch(model, machine, num_steps)
    return model
