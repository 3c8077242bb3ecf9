"""The step-time model against machines whose times are known."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.engine.step_times import Machine, decodes, model_of, random_step, watch
from tidegate_server.engine.batch import RequestId, ScheduledRequest
from tidegate_server.engine.step_time import StepShape, StepTimeModel, shape_of

MIXED = decodes(16, 300).plus(1000, 128)


def share(start: int, num_new_tokens: int) -> ScheduledRequest:
    return ScheduledRequest(RequestId("r"), start, [1] * num_new_tokens, [], sampling=None, seed=0)


def test_a_shape_counts_what_each_new_token_attends_to() -> None:
    shape = shape_of([share(10, 1), share(4, 3)])
    assert shape == StepShape(num_requests=2, num_new_tokens=4, num_context_tokens=18, num_attended_tokens=29)


@given(st.lists(st.tuples(st.integers(0, 10**5), st.integers(1, 512)), max_size=8))
def test_a_shape_put_together_is_that_of_the_batch(parts: list[tuple[int, int]]) -> None:
    shape = StepShape()
    for start, num_new_tokens in parts:
        shape = shape.plus(start, num_new_tokens)
    assert shape == shape_of([share(*part) for part in parts])


def test_nothing_is_claimed_before_the_first_observation() -> None:
    model = StepTimeModel()
    assert model.predict(MIXED) == 0.0
    assert model.error_ratio == 0.0
    assert model.num_tokens_within(0.001, MIXED, start=0, at_most=512) == 512


def test_the_first_step_is_known_once_it_was_seen() -> None:
    model = StepTimeModel()
    model.observe(MIXED, 0.25)
    assert model.predict(MIXED) == pytest.approx(0.25)


@pytest.mark.parametrize("step", [decodes(1, 16), decodes(32, 1024), MIXED, decodes(4, 100).plus(0, 256)])
def test_a_linear_machine_is_learned(step: StepShape) -> None:
    machine = Machine()
    assert model_of(machine).predict(step) == pytest.approx(machine.seconds(step), rel=0.02)


def test_noise_is_averaged_out() -> None:
    noisy, exact = Machine(noise=0.2), Machine()
    model = model_of(noisy)
    for step in (decodes(8, 300), MIXED):
        assert model.predict(step) == pytest.approx(exact.seconds(step), rel=0.1)
    assert model.error_ratio == pytest.approx(0.1, abs=0.04)


@pytest.mark.parametrize("step", [decodes(8, 300), MIXED])
def test_a_step_ten_times_too_slow_changes_next_to_nothing(step: StepShape) -> None:
    machine = Machine()
    model = model_of(machine)
    model.observe(step, 10 * machine.seconds(step))
    for each in (decodes(8, 300), MIXED):
        assert model.predict(each) == pytest.approx(machine.seconds(each), rel=0.03)


def test_a_slow_first_step_is_soon_forgotten() -> None:
    machine = Machine()
    model = StepTimeModel()
    model.observe(decodes(0, 0).plus(0, 64), 5.0)
    watch(model, machine, 30)
    for step in (decodes(8, 300), MIXED):
        assert model.predict(step) == pytest.approx(machine.seconds(step), rel=0.1)


@pytest.mark.parametrize("slowdown", [3.0, 1 / 3])
def test_a_machine_that_changes_its_pace_is_followed(slowdown: float) -> None:
    model = model_of(Machine())
    changed = Machine(slowdown=slowdown)
    watch(model, changed, 300)
    for step in (decodes(8, 300), MIXED):
        assert model.predict(step) == pytest.approx(changed.seconds(step), rel=0.1)


def test_the_price_of_a_prompt_outlives_a_long_time_without_prompts() -> None:
    machine = Machine(noise=0.05)
    model = model_of(machine)
    for number in range(5000):
        step = decodes(16, 100 + number % 500)
        model.observe(step, machine.seconds(step))
    assert model.predict(MIXED) == pytest.approx(Machine().seconds(MIXED), rel=0.15)


def test_a_machine_that_is_not_linear_is_met_where_it_works() -> None:
    """Up to some tokens a GPU waits for the weights; only beyond does each token cost."""
    model = StepTimeModel()
    chance = random.Random(3)

    def seconds(step: StepShape) -> float:
        return max(0.008, 0.00005 * step.num_new_tokens) + 1e-8 * step.num_context_tokens

    seen = [decodes(16, chance.randint(100, 900)) for _ in range(400)]
    seen = [step.plus(chance.randint(0, 4000), 512) if number % 4 == 0 else step for number, step in enumerate(seen)]
    for step in seen:
        model.observe(step, seconds(step))
    for step in seen[-8:]:
        assert model.predict(step) == pytest.approx(seconds(step), rel=0.05)


def test_a_clock_that_stood_still_teaches_nothing() -> None:
    model = StepTimeModel()
    model.observe(MIXED, 0.0)
    assert model.predict(MIXED) == 0.0


def test_an_unpredictable_machine_has_a_large_error() -> None:
    model = StepTimeModel()
    for number in range(200):
        model.observe(decodes(8, 300), 0.01 if number % 2 else 0.1)
    assert 0.4 < model.error_ratio < 1.0


@given(st.lists(st.tuples(st.integers(0, 2**32), st.floats(1e-6, 1e3)), min_size=1, max_size=60))
def test_whatever_it_sees_more_work_never_takes_less_time(steps: list[tuple[int, float]]) -> None:
    model = StepTimeModel()
    for seed, seconds in steps:
        model.observe(random_step(random.Random(seed)), seconds)
    empty, some, more = (model.predict(step) for step in (StepShape(), MIXED, MIXED.plus(500, 64)))
    assert 0.0 <= empty <= some <= more < math.inf
    assert 0.0 <= model.error_ratio <= 1.0


@given(
    prices=st.tuples(*(st.floats(0.0, high) for high in (0.1, 0.01, 0.01, 1e-4, 1e-5))),
    num_decodes=st.integers(0, 64),
    start=st.integers(0, 100_000),
    limit_s=st.floats(0.0, 2.0),
)
def test_the_tokens_within_a_time_are_the_most_that_fit(
    prices: tuple[float, float, float, float, float], num_decodes: int, start: int, limit_s: float
) -> None:
    machine = Machine(*prices)
    model, planned = model_of(machine, 60), decodes(num_decodes, 200)
    most = model.num_tokens_within(limit_s, planned, start, at_most=512)
    assert 0 <= most <= 512
    if most > 0:
        assert model.predict(planned.plus(start, most)) <= limit_s * (1 + 1e-9)
    if most < 512:
        assert model.predict(planned.plus(start, most + 1)) >= limit_s * (1 - 1e-9)
