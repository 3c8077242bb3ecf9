"""An engine that stands still is told by looks at it, and in words."""

import pytest

from tidegate_server.engine.progress_watch import (
    GRACE_S,
    MAX_IDLE_AGE_S,
    Progress,
    ProgressWatch,
    patience_s,
    standstill,
)
from tidegate_server.engine.snapshot import EngineSnapshot

LOOK_EVERY_S = 10.0
IDLE = EngineSnapshot(step=4, progress_at_s=7.0)
STEPPING = EngineSnapshot(step=5, progress_at_s=7.0, step_bound_s=30.0, step_num_requests=3, step_num_tokens=512)


def looks_until(progress: Progress, seen: EngineSnapshot) -> int:
    """How many looks at an engine that does not move it takes."""
    watch = ProgressWatch(LOOK_EVERY_S)
    return next(number for number in range(1, 100) if watch.look(seen) is progress)


@pytest.mark.parametrize(
    ("seen", "patience"), [(IDLE, MAX_IDLE_AGE_S), (STEPPING, 30.0)], ids=["between steps", "in a step"]
)
def test_an_engine_hangs_once_it_was_watched_as_long_as_it_may_take_and_is_lost_after_the_grace(
    seen: EngineSnapshot, patience: float
) -> None:
    assert patience_s(seen) == patience
    assert looks_until(Progress.HUNG, seen) == 1 + patience / LOOK_EVERY_S
    assert looks_until(Progress.LOST, seen) == 1 + (patience + GRACE_S) / LOOK_EVERY_S


def test_any_progress_begins_the_count_anew() -> None:
    watch = ProgressWatch(LOOK_EVERY_S)
    for at_s in (1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0):
        assert watch.look(EngineSnapshot(progress_at_s=at_s, step_bound_s=30.0)) is Progress.MOVING


def test_one_look_at_an_old_progress_is_no_hang() -> None:
    # However long the pod was frozen, the engine gets as many looks as ever to go on.
    assert ProgressWatch(LOOK_EVERY_S).look(STEPPING) is Progress.MOVING


def test_the_words_say_which_step_it_is() -> None:
    expected = "step 5 (requests: 3, tokens: 512) has run for 61 s, and its bound is 30 s"
    assert standstill(STEPPING, 61.0) == expected
    assert standstill(IDLE, 61.0) == "the engine has made no progress for 61 s, since step 4"
