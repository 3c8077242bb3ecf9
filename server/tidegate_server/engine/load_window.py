"""How long requests queue: the 90th percentile over the last seconds, those still waiting included."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

WINDOW_S: Final = 15.0
_PERCENTILE: Final = 0.9


class QueueTimeWindow:
    """The queue times of the requests admitted within the last `window_s` seconds."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._admitted: deque[tuple[float, float]] = deque()  # (admitted at, queue time), both in seconds

    def record(self, queue_time_s: float, now: float) -> None:
        self._admitted.append((now, queue_time_s))

    def p90_s(self, waiting_since: Iterable[float], now: float) -> float:
        """The 90th percentile at `now`; 0 when nobody was admitted and nobody waits.

        Args:
            waiting_since: arrival times of the requests that wait for their first step.
        """
        while self._admitted and self._admitted[0][0] <= now - self._window_s:
            self._admitted.popleft()
        times = [queue_time_s for _, queue_time_s in self._admitted]
        times += [now - arrival_s for arrival_s in waiting_since]
        return percentile(times, _PERCENTILE)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed; 0 of no values."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
