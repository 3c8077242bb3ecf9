"""The CPU kernels under the compiler's sanitizers: no byte past an operand, no undefined arithmetic, no race.

    .venv/bin/pytest tests/kernels/cpu/test_sanitize.py

What is built stays below `build/`, so that a second run builds only what changed.
"""

import os
import shutil
import subprocess
from pathlib import Path

import cmake
import ninja
import pytest

from tidegate_kernels.cpu.library import Library

pytestmark = pytest.mark.compiles

SOURCES = Path(__file__).with_name("sanitize")
BUILDS = Path(__file__).parents[3] / "build"


@pytest.mark.parametrize(
    ("sanitizers", "isas"),
    # Threads meet in the pool and not in the kernels, so one instruction set is enough for races.
    [("address,undefined", ()), ("thread", ("avx2",))],
    ids=["memory and arithmetic", "races"],
)
def test_the_sanitizers_find_nothing(sanitizers: str, isas: tuple[str, ...], loaded: Library, tmp_path: Path) -> None:
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler")
    assert _output_of(_build(sanitizers) / "check", *isas) == (isas or loaded.supported_isas())


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"], ids=["memory and arithmetic", "races"])
def test_threads_keep_together_while_neighbours_change_their_number(sanitizers: str) -> None:
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler")
    assert _output_of(_build(sanitizers) / "pool_check") == ("sound",)


def _output_of(program: Path, *arguments: str) -> tuple[str, ...]:
    """The words that a program gave when it found nothing."""
    # The time-out is for a pool that waits forever; it takes seconds.
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=300)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip(f"this compiler's sanitizers cannot run with this kernel's address layout: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return tuple(done.stdout.split())


def _build(sanitizers: str) -> Path:
    """The folder with the programs.

    They are built once for all tests, as far as nothing changed.
    """
    folder = BUILDS / f"sanitize-{sanitizers.replace(',', '-')}"
    program = Path(cmake.CMAKE_BIN_DIR, "cmake")
    make_program = f"-DCMAKE_MAKE_PROGRAM={Path(ninja.BIN_DIR, 'ninja')}"
    options = [f"-DSANITIZERS={sanitizers}", make_program]
    # Fresh: what an earlier run found of compilers and paths may hold no longer. Objects are kept.
    _run([program, "--fresh", "-S", SOURCES, "-B", folder, "-G", "Ninja", *options])
    _run([program, "--build", folder])
    return folder


def _run(argv: list[str | Path]) -> None:
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
