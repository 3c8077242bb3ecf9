"""The bound of a step follows from what steps take."""

from tidegate_server.engine.step_bound import MARGIN, MIN_BOUND_S, UNKNOWN_BOUND_S, StepBound
from tidegate_server.engine.step_time import StepShape, StepTimeModel

DECODE = StepShape().plus(start=100, num_new_tokens=1)
PROMPT = StepShape().plus(start=0, num_new_tokens=512)


def test_a_slow_step_gets_many_times_as_long_and_a_fast_one_half_a_minute() -> None:
    model = StepTimeModel()
    bound = StepBound(model)
    bound.ran(DECODE)
    assert bound.bound_s(DECODE) == MIN_BOUND_S
    for _ in range(100):
        model.observe(DECODE, 5.0)
    assert bound.bound_s(DECODE) == MARGIN * model.predict(DECODE) > 4.5 * MARGIN


def test_a_step_with_more_tokens_than_any_before_gets_a_minute() -> None:
    bound = StepBound(StepTimeModel())
    bound.ran(DECODE)
    assert bound.bound_s(PROMPT) == UNKNOWN_BOUND_S
    bound.ran(PROMPT)
    assert bound.bound_s(PROMPT) == MIN_BOUND_S
