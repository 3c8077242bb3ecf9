"""Which resources to look at next: each at most once in the queue, at most once in work, later and later on failure.

Level-triggered: a key says "look", never what happened, so any number of triggers may become one look. Pure: time comes
in, nothing waits.
"""

from dataclasses import dataclass, field
from typing import Final

from tidegate_operator.cluster import Key

FIRST_BACK_OFF_S: Final = 1.0
MAX_BACK_OFF_S: Final = 60.0


@dataclass(slots=True)
class KeyQueue:
    """Keys with the time at which each is due. Times are seconds of any one clock that never goes back."""

    _due: dict[Key, float] = field(default_factory=dict)
    _in_work: dict[Key, float | None] = field(default_factory=dict)  # with the time it was put again meanwhile
    _failures: dict[Key, int] = field(default_factory=dict)

    def put(self, key: Key, at: float) -> None:
        """Look at the key at that time, or earlier if it is due earlier already.

        A key in work comes back afterwards: what triggered may have happened after the work had read the cluster.
        """
        if key in self._in_work:
            self._in_work[key] = _earlier(self._in_work[key], at)
        else:
            self._due[key] = _earlier(self._due.get(key), at)

    def take(self, now: float) -> Key | None:
        """The key that has been due longest, now in work; None when none is due."""
        key = min(self._due, key=lambda key: self._due[key], default=None)
        if key is None or self._due[key] > now:
            return None
        del self._due[key]
        self._in_work[key] = None
        return key

    def done(self, key: Key, recheck_at: float | None) -> None:
        """The look went well; come back when asked, or only when triggered."""
        self._failures.pop(key, None)
        self._finish(key, recheck_at)

    def failed(self, key: Key, now: float) -> float:
        """The look failed; returns the seconds until the next."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # 2**20 seconds is beyond the maximum anyway; the exponent must not grow without end.
        delay = min(MAX_BACK_OFF_S, FIRST_BACK_OFF_S * 2.0 ** min(failures, 20))
        self._finish(key, now + delay)
        return delay

    def next_due(self) -> float | None:
        """When the next key is due; None when nothing waits."""
        return min(self._due.values(), default=None)

    def __len__(self) -> int:
        return len(self._due) + len(self._in_work)

    def _finish(self, key: Key, at: float | None) -> None:
        again = self._in_work.pop(key)
        for time in (again, at):
            if time is not None:
                self._due[key] = _earlier(self._due.get(key), time)


def _earlier(known: float | None, at: float) -> float:
    return at if known is None else min(known, at)
