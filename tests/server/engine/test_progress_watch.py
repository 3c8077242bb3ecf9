"""A stalled engine is told by looks at it."""

from tidegate_server.engine.progress_watch import ProgressWatch


def test_an_engine_without_progress_for_so_many_looks_has_stalled() -> None:
    watch = ProgressWatch(max_looks=3)
    assert [watch.has_stalled(7.0) for _ in range(4)] == [False, False, False, True]


def test_any_progress_begins_the_count_anew() -> None:
    watch = ProgressWatch(max_looks=3)
    assert not any(watch.has_stalled(at_s) for at_s in (1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0))


def test_one_look_at_an_old_progress_is_no_stall() -> None:
    watch = ProgressWatch(max_looks=3)
    assert not watch.has_stalled(5.0)
    # However long the pod was frozen, the engine gets as many looks as ever to go on.
    assert [watch.has_stalled(at_s) for at_s in (5.0, 5.0, 3605.0)] == [False, False, False]
