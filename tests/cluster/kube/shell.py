"""Run one program to its end, and turn its failure into one readable line."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.kube.errors import ClusterError


def run(argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: str = "") -> str:
    """Return the program's stdout.

    Raises:
        ClusterError: the program is missing or failed; carries the last line that it wrote.
    """
    try:
        done = subprocess.run(argv, env=env, cwd=cwd, input=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ClusterError(f"{argv[0]}: no such program; install the package that brings it") from error
    if done.returncode != 0:
        raise ClusterError(f"`{_short(argv)}` failed: {last_line(done.stderr or done.stdout)}")
    return done.stdout


def run_visibly(argv: Sequence[str], *, env: Mapping[str, str] | None = None, log: Path) -> None:
    """Run a long program with its output in `log`.

    Raises:
        ClusterError: it failed; names the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as out:
        try:
            done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False)
        except FileNotFoundError as error:
            raise ClusterError(f"{argv[0]}: no such program; install the package that brings it") from error
    if done.returncode != 0:
        text = log.read_text(encoding="utf-8", errors="replace")
        raise ClusterError(f"`{_short(argv)}` failed: {last_line(text)} (all of it: {log})")


def succeeds(argv: Sequence[str]) -> bool:
    """Run a program for its exit status alone; one that is not there does not succeed."""
    if shutil.which(argv[0]) is None:
        return False
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def last_line(text: str) -> str:
    """The last line that says something, where most programs put the cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _short(argv: Sequence[str]) -> str:
    words = " ".join(argv)
    return words if len(words) <= 120 else words[:117] + "..."
