"""Shows the stages of the demo with their times, and runs the commands they are made of."""

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


def read(command: Sequence[str | Path], *, stdin: str | None = None, shows_progress: bool = False) -> str:
    """Run a command in the repository and give its standard output; on failure say which one and why.

    Args:
        shows_progress: its standard error goes to the terminal as it comes.
    """
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        text=True,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=None if shows_progress else subprocess.PIPE,
    )
    if done.returncode != 0:
        said = (done.stdout + (done.stderr or ""))[-4000:]
        raise StageFailed(f"`{_shown(command)}` ended with status {done.returncode}:\n{said}")
    return done.stdout


def follow(command: Sequence[str | Path], *, stdin: str | None = None) -> None:
    """Run a command in the repository, its output shown as it comes."""
    done = subprocess.run(command, cwd=REPOSITORY, text=True, input=stdin)
    if done.returncode != 0:
        raise StageFailed(f"`{_shown(command)}` ended with status {done.returncode}; see above")


def _shown(command: Sequence[str | Path]) -> str:
    text = " ".join(str(part) for part in command)
    return text if len(text) < 300 else text[:300] + " ..."
