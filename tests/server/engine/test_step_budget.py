"""How much of a prompt goes into a step, and that decodes are held back no longer than promised."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.engine.step_times import Machine, decodes, model_of
from tidegate_server.engine.load_window import percentile
from tidegate_server.engine.step_budget import StepBudget
from tidegate_server.engine.step_time import StepShape, StepTimeModel

MODEL = model_of(Machine())


def budget(*, token_cap: int = 512, time_target: float = 2.0, model: StepTimeModel = MODEL) -> StepBudget:
    return StepBudget(token_cap=token_cap, time_target=time_target, model=model)


def test_with_no_decode_to_hold_back_only_the_cap_counts() -> None:
    assert budget().num_prefill_tokens(StepShape(), StepShape(), start=0) == 512


def test_without_a_target_only_the_cap_counts() -> None:
    step = decodes(16, 300)
    assert budget(time_target=0).num_prefill_tokens(step, step, start=0) == 512 - 16


def test_a_model_that_knows_nothing_sets_no_limit() -> None:
    step = decodes(16, 300)
    assert budget(model=StepTimeModel()).num_prefill_tokens(step, step, start=0) == 512 - 16


def test_the_cap_counts_where_it_is_smaller() -> None:
    step = decodes(16, 300)
    assert budget(token_cap=20, time_target=100).num_prefill_tokens(step, step, start=0) == 4
    assert budget(token_cap=16).num_prefill_tokens(step, step, start=0) == 0
    assert budget(token_cap=8).num_prefill_tokens(step, step, start=0) == 0


def test_the_deeper_in_a_prompt_the_fewer_of_its_tokens() -> None:
    step = decodes(32, 300)
    numbers = [budget().num_prefill_tokens(step, step, start) for start in (0, 1000, 4000)]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] > 2 * numbers[-1] > 2


@pytest.mark.parametrize("target", [1.0, 1.01])
def test_a_token_of_a_prompt_goes_into_every_step_whatever_the_target(target: float) -> None:
    step, each = decodes(1, 16), budget(time_target=target)
    assert each.num_prefill_tokens(step, step, start=0) == 1
    assert each.num_prefill_tokens(step, step.plus(0, 1), start=0) == 0


def test_each_prompt_has_an_allowance_of_its_own() -> None:
    step, each = decodes(32, 300), budget()
    first = each.num_prefill_tokens(step, step, start=0)
    planned = step.plus(0, first)
    second = each.num_prefill_tokens(step, planned, start=0)
    assert 0.9 * first <= second <= first
    assert MODEL.predict(planned.plus(0, second)) <= 3 * MODEL.predict(step) * (1 + 1e-9)


@given(
    num_decodes=st.integers(1, 64),
    context=st.integers(1, 4000),
    target=st.floats(1.0, 10.0),
    prompts=st.lists(st.tuples(st.integers(0, 8000), st.integers(1, 600)), max_size=6),
)
def test_no_prompt_lengthens_a_step_by_more_than_the_target_allows(
    num_decodes: int, context: int, target: float, prompts: list[tuple[int, int]]
) -> None:
    step = planned = decodes(num_decodes, context)
    allowance_s = (target - 1) * MODEL.predict(step)
    for start, num_tokens in prompts:
        most = budget(time_target=target).num_prefill_tokens(step, planned, start)
        if most == 0:
            break
        before, planned = planned, planned.plus(start, min(most, num_tokens))
        added_s = MODEL.predict(planned) - MODEL.predict(before)
        is_least = before == step and planned.num_new_tokens == step.num_new_tokens + 1
        assert is_least or added_s <= allowance_s * (1 + 1e-9) + 1e-12
    assert planned.num_new_tokens <= 512


CPU = Machine(noise=0.05)
GPU = Machine(noise=0.05, constant=0.008, new_token=0.00004, context_token=2e-7, attended_token=2e-9)


class Streams:
    """Sixteen requests that decode on a machine, and the time that each of their tokens takes."""

    def __init__(self, machine: Machine) -> None:
        self.machine = replace(machine, chance=random.Random(7))
        self.model = StepTimeModel()
        self.gaps_s: list[float] = []
        for _ in range(16):
            self.run(StepShape().plus(0, 300))
        self.gaps_s.clear()

    def run(self, step: StepShape, slowdown: float = 1.0) -> None:
        self.gaps_s.append(self.machine.seconds(step) * slowdown)
        self.model.observe(step, self.gaps_s[-1])

    def decode(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.run(decodes(16, 300 + len(self.gaps_s)))

    def take_prompt(self, num_tokens: int, first_slowdown: float = 1.0) -> int:
        """Compute a prompt beside the streams; gives the number of steps."""
        each, start, num_steps = budget(model=self.model), 0, 0
        while start < num_tokens:
            step = decodes(16, 300 + len(self.gaps_s))
            num_new_tokens = min(each.num_prefill_tokens(step, step, start), num_tokens - start)
            self.run(step.plus(start, num_new_tokens), first_slowdown if num_steps == 0 else 1.0)
            start, num_steps = start + num_new_tokens, num_steps + 1
        return num_steps


@pytest.mark.parametrize("machine", [CPU, GPU], ids=["CPU", "GPU"])
def test_a_long_prompt_holds_streams_back_no_more_than_the_target(machine: Machine) -> None:
    undisturbed, disturbed = Streams(machine), Streams(machine)
    disturbed.decode(300)
    undisturbed.decode(300 + disturbed.take_prompt(4000))
    assert percentile(disturbed.gaps_s, 0.99) <= 2 * percentile(undisturbed.gaps_s, 0.99)


@pytest.mark.parametrize("machine", [CPU, GPU], ids=["CPU", "GPU"])
def test_a_prompt_whose_first_step_met_a_busy_neighbour_goes_on_nearly_as_fast(machine: Machine) -> None:
    """For long nobody brought a prompt, so that step is all the model knows of what they cost."""
    usual, unlucky = Streams(machine), Streams(machine)
    usual.decode(600)
    unlucky.decode(600)
    assert unlucky.take_prompt(4000, first_slowdown=10.0) <= 1.25 * usual.take_prompt(4000)
