"""A process that computes for as long as it is let, and how much CPU time it got."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from tidegate_bench.process_tree import ProcessTree

BUSY = "while True: pass"


@contextlib.contextmanager
def busy_neighbour() -> Iterator[ProcessTree]:
    """One busy thread, on whatever CPU the kernel gives it, at our own priority."""
    process = subprocess.Popen([sys.executable, "-S", "-E", "-c", BUSY])
    try:
        yield ProcessTree(process.pid)
    finally:
        process.kill()
        process.wait()
