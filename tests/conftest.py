"""What holds for every test of this process."""

import os
from collections.abc import Iterator

import pytest

CPUS = os.sched_getaffinity(0)

# As in the engine's own process (`engine.process.engine_environment`), and before torch is imported: on two cores that
# tests share with servers under test, threads that spin make each other wait.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")


@pytest.fixture(autouse=True)
def _all_cpus() -> Iterator[None]:
    """Give the thread of the tests its CPUs back.

    The pool of the CPU kernels pins whoever calls it, and all that a later test starts would share that one CPU.
    """
    yield
    os.sched_setaffinity(0, CPUS)
