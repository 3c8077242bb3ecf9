"""Shows the stages of the demo with their times, and runs the commands they are made of."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


class StageFailed(Exception):
    """A command of a stage failed; the message holds the command and the end of what it said."""


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@contextmanager
def stage(title: str) -> Iterator[None]:
    """Announce a stage, and its time once it is done."""
    say(f"\n==> {title}")
    started = time.monotonic()
    yield
    say(f"    done in {time.monotonic() - started:.1f} s")


def run(command: Sequence[str | Path], *, env: dict[str, str] | None = None) -> str:
    """Run a command in the repository and give its output; on failure say which one and why."""
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **(env or {})},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode != 0:
        shown = " ".join(str(part) for part in command)
        raise StageFailed(f"`{shown}` ended with status {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def follow(command: Sequence[str | Path], *, env: dict[str, str] | None = None) -> None:
    """Run a long command in the repository, its output shown as it comes."""
    done = subprocess.run(command, cwd=REPOSITORY, env={**os.environ, **(env or {})})
    if done.returncode != 0:
        raise StageFailed(f"`{' '.join(str(part) for part in command)}` ended with status {done.returncode}; see above")
