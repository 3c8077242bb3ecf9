"""Tells an engine that stands still from a machine that did."""


class ProgressWatch:
    """Counts looks at the engine's progress, not seconds.

    After a pause of the whole pod, such as a frozen cgroup's, the last progress is long ago for an engine that is well.
    """

    def __init__(self, max_looks: int) -> None:
        """
        Args:
            max_looks: so many looks in a row without progress, and the engine has stalled.
        """
        self._max_looks = max_looks
        self._num_looks = 0
        self._progress_at_s: float | None = None

    def has_stalled(self, progress_at_s: float) -> bool:
        """One look, at the time of the engine's last step or idle tick."""
        if progress_at_s != self._progress_at_s:
            self._progress_at_s = progress_at_s
            self._num_looks = 0
        self._num_looks += 1
        return self._num_looks > self._max_looks
