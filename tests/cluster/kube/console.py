"""What a person sees while the cluster starts: progress on stderr, results on stdout."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(line: str) -> None:
    """Tell a person about progress; stdout stays free for the result."""
    sys.stderr.write(f"cluster: {line}\n")
    sys.stderr.flush()


def answer(line: str) -> None:
    """Give the result of the command, for a person or a script."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Announce a step before it starts and its duration once it has succeeded."""
    say(f"{name} ...")
    started = time.monotonic()
    yield
    say(f"{name}: done in {time.monotonic() - started:.1f} s")
