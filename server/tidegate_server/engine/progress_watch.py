"""Tells an engine that stands still from one that is slow, and from a machine that stood still."""

from enum import Enum, auto
from typing import Final

from tidegate_server.engine.snapshot import EngineSnapshot

# Between two steps an engine shows itself every half second; taking in thousands of requests may hold it up.
MAX_IDLE_AGE_S: Final = 60.0

# The liveness probe fails from the bound on, and three times before Kubernetes acts: until then a slow step may end.
GRACE_S: Final = 30.0


class Progress(Enum):
    MOVING = auto()
    HUNG = auto()  # beyond its bound; it may still go on
    LOST = auto()  # beyond the grace too


def patience_s(seen: EngineSnapshot) -> float:
    """How old the engine's last progress may become: the bound of the step that runs, or the limit between steps."""
    return seen.step_bound_s if seen.is_stepping else MAX_IDLE_AGE_S


def standstill(seen: EngineSnapshot, age_s: float) -> str:
    """What takes so long, in words for a person."""
    if seen.is_stepping:
        return (
            f"step {seen.step} (requests: {seen.step_num_requests}, tokens: {seen.step_num_tokens}) has run for "
            f"{age_s:.0f} s, and its bound is {seen.step_bound_s:.0f} s"
        )
    return f"the engine has made no progress for {age_s:.0f} s, since step {seen.step}"


class ProgressWatch:
    """Counts looks at the engine's progress, not seconds.

    After a pause of the whole pod, such as a frozen cgroup's, the last progress is long ago for an engine that is well.
    """

    def __init__(self, look_every_s: float) -> None:
        self._look_every_s = look_every_s
        self._num_looks = 0
        self._progress_at_s: float | None = None

    def look(self, seen: EngineSnapshot) -> Progress:
        """One look, at what the engine showed last."""
        if seen.progress_at_s != self._progress_at_s:
            self._progress_at_s = seen.progress_at_s
            self._num_looks = 0
        self._num_looks += 1
        watched_s = (self._num_looks - 1) * self._look_every_s
        if watched_s < patience_s(seen):
            return Progress.MOVING
        return Progress.HUNG if watched_s < patience_s(seen) + GRACE_S else Progress.LOST
