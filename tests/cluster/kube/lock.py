"""One at a time: a lock that goes with the process that holds it."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.kube.console import say


@contextmanager
def exclusive(path: Path, purpose: str) -> Iterator[None]:
    """Hold the lock file while the body runs; say so when another process makes us wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{purpose}: another process is at it, waiting for it to end")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
