"""Kernels run in Triton's interpreter where there is no GPU, compiled on the first GPU where there is one."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import deterministic

INTERPRETED = not torch.cuda.is_available()

if INTERPRETED:
    # Triton reads this while it is imported, and again for each kernel it decorates: before any test module of ours.
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise pytest.UsageError(
            "Triton was imported before tests/kernels could ask for its interpreter: "
            "run `TRITON_INTERPRET=1 pytest`, or `pytest tests/kernels` alone"
        )
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")


@pytest.fixture
def rows_multiplied_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter's products take one row after the other, as a GPU's tiles take them alike.

    numpy's own give a row other bits in another place, on some processors with AVX2.
    """
    if not INTERPRETED:
        return
    from triton.runtime import interpreter

    def create_dot(builder: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        rows = [np.matmul(row, b.data, dtype=d.data.dtype) for row in a.data]
        return interpreter.TensorHandle(np.stack(rows) + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@pytest.fixture(autouse=True)
def _poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill what `torch.empty` gives with NaN, so that a cell that a kernel forgets to write is noticed."""
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", True)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
