"""An average in which the latest values count most."""


class MovingAverage:
    """Exponentially weighted; until enough values have come, the plain mean, so that the first does not count for ever.

    Args:
        horizon: so many values back, a value counts for about a third of the latest.
    """

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self._num_values = 0
        self.value = 0.0  # 0 while there is none

    def add(self, value: float) -> None:
        self._num_values = min(self._num_values + 1, self._horizon)
        self.value += (value - self.value) / self._num_values
