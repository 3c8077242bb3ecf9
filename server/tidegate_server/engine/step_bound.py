"""How long a step may take before it counts as hung."""

from dataclasses import dataclass
from typing import Final

from tidegate_server.engine.step_time import StepShape, StepTimeModel

# A pod that is killed for a slow step loses all its requests, so the bound is far above what a step takes.
MARGIN: Final = 20
MIN_BOUND_S: Final = 30.0
# The longest step seen on a CPU (512 prompt tokens of a model that barely fits) takes some ten seconds.
UNKNOWN_BOUND_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class StepUnderWay:
    """The step that runs, as liveness sees it."""

    bound_s: float
    num_requests: int
    num_tokens: int


IDLE: Final = StepUnderWay(0.0, 0, 0)


class StepBound:
    """Many times what the model of step times predicts.

    Until a step has computed as many tokens, the model has not seen what one costs: after decodes alone, a first prompt
    may take a hundred times longer than predicted.
    """

    def __init__(self, model: StepTimeModel) -> None:
        self._model = model
        self._most_tokens = 0  # of any step so far

    def bound_s(self, shape: StepShape) -> float:
        least_s = MIN_BOUND_S if shape.num_new_tokens <= self._most_tokens else UNKNOWN_BOUND_S
        return max(least_s, MARGIN * self._model.predict(shape))

    def ran(self, shape: StepShape) -> None:
        """Take in a step that came to its end."""
        self._most_tokens = max(self._most_tokens, shape.num_new_tokens)
