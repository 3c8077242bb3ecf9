"""How long a step takes, by what it computes: a linear model fitted while the engine runs, from every step."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import mul
from typing import Final

from tidegate_server.engine.batch import ScheduledRequest
from tidegate_server.engine.moving_average import MovingAverage

# So many steps back, a step counts for about a third of the latest: at 20 ms a step, the last second.
_HORIZON: Final = 50
_KEEP: Final = 1 - 1 / _HORIZON
# Sweeps over the coefficients for one step; the next step goes on from where they end.
_NUM_SWEEPS: Final = 2


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step computes, as far as its time depends on it."""

    num_requests: int = 0
    num_new_tokens: int = 0
    num_context_tokens: int = 0  # keys in reach of each request's last token: what attention reads from memory
    num_attended_tokens: int = 0  # keys in reach of each new token: what attention computes. The same for a decode

    def plus(self, start: int, num_new_tokens: int) -> "StepShape":
        """The step with one more request in it, which computes so many tokens from position `start` on."""
        return StepShape(
            num_requests=self.num_requests + 1,
            num_new_tokens=self.num_new_tokens + num_new_tokens,
            num_context_tokens=self.num_context_tokens + start + num_new_tokens,
            num_attended_tokens=self.num_attended_tokens + _num_attended(start, num_new_tokens),
        )


NO_STEP: Final = StepShape()


def shape_of(shares: Iterable[ScheduledRequest]) -> StepShape:
    """The shape of a step with these shares."""
    num_requests = num_new_tokens = num_context_tokens = num_attended_tokens = 0
    for share in shares:
        num_new = share.num_new_tokens
        num_requests += 1
        num_new_tokens += num_new
        num_context_tokens += share.start + num_new
        num_attended_tokens += _num_attended(share.start, num_new)
    return StepShape(num_requests, num_new_tokens, num_context_tokens, num_attended_tokens)


def _num_attended(start: int, num_new_tokens: int) -> int:
    return num_new_tokens * start + num_new_tokens * (num_new_tokens + 1) // 2


class StepTimeModel:
    """Seconds of a step = a constant, plus a price for each thing that `StepShape` counts; no price is below zero.

    The prices are those with the least squared error over the recent steps. Each error counts relative to the step's
    time, the measured or the predicted one, whichever is longer: so short steps are fitted as well as long ones, and a
    step that took ten times too long, because a neighbour held the processor, weighs a hundredth of the others.

    A step moves the prices from where they are, one after the other, downhill. So a price of which the recent steps say
    nothing, such as that of a prompt's token while all requests decode, stays what it was. Python's floats are enough:
    a step costs some ten microseconds.

    Source:
        Franc, Hlaváč and Navara 2005, "Sequential coordinate-wise algorithm for the non-negative least squares
        problem", with exponential forgetting.
    """

    def __init__(self) -> None:
        self._prices = [0.0] * 5  # in the order of `_quantities`
        self._gram = [[0.0] * 5 for _ in range(5)]  # sum of the weighted quantities' products
        self._moment = [0.0] * 5  # sum of their products with the time
        self._has_observed = False
        self._error = MovingAverage(_HORIZON)

    @property
    def error_ratio(self) -> float:
        """How far off the recent predictions were, relative to the longer of predicted and measured: 0 to 1."""
        return self._error.value

    def predict(self, shape: StepShape) -> float:
        """Seconds that such a step takes; 0 before the first observation."""
        seconds: float = sum(map(mul, self._prices, _quantities(shape)))
        return seconds

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Take in a step that was run."""
        if seconds <= 0.0:
            return  # a clock too coarse for the step has measured nothing
        quantities = _quantities(shape)
        predicted = sum(map(mul, self._prices, quantities))
        scale = max(seconds, predicted)
        if self._has_observed:
            self._error.add(abs(seconds - predicted) / scale)
        self._has_observed = True
        row = [quantity / scale for quantity in quantities]
        self._gram = [
            [_KEEP * old + left * right for old, right in zip(sums, row, strict=True)]
            for sums, left in zip(self._gram, row, strict=True)
        ]
        relative = seconds / scale
        self._moment = [_KEEP * old + left * relative for old, left in zip(self._moment, row, strict=True)]
        self._descend()

    def num_tokens_within(self, limit_s: float, planned: StepShape, start: int, at_most: int) -> int:
        """Most tokens that one more request can compute in a step without the step taking longer than `limit_s`.

        Args:
            planned: what the step computes already.
            start: position of the request's first token to compute.
            at_most: the answer when time sets no limit.
        """
        _, request, token, context, attended = self._prices
        # The predicted time less the limit is a·n² + b·n + c for n tokens, with a and b never below zero.
        a = attended / 2
        b = token + context + attended * (start + 0.5)
        c = self.predict(planned) + request + context * start - limit_s
        if c > 0.0:
            return 0
        divisor = b + math.sqrt(b * b - 4 * a * c)
        # In this form of the root nothing cancels where `a` is close to zero.
        return at_most if divisor * at_most <= -2 * c else int(-2 * c / divisor)

    def _descend(self) -> None:
        prices = self._prices
        for _ in range(_NUM_SWEEPS):
            for index, sums in enumerate(self._gram):
                if sums[index] > 0.0:
                    gap = self._moment[index] - sum(map(mul, sums, prices))
                    prices[index] = max(0.0, prices[index] + gap / sums[index])


def _quantities(shape: StepShape) -> tuple[float, float, float, float, float]:
    return (1.0, shape.num_requests, shape.num_new_tokens, shape.num_context_tokens, shape.num_attended_tokens)
