"""What the sampler does when the C library cannot compute."""

import ctypes
from dataclasses import replace

import pytest
import torch

from tests.server.model.drawing import EOS, draw, params
from tidegate_kernels.cpu.library import Library, load_library, missing_because
from tidegate_kernels.cpu.structs import NO_MEMORY, TgDraw, TgLogprobs
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.model.sampler import sample
from tidegate_server.model.sampler_cpu import CpuSamplerOps


@pytest.fixture
def starved() -> Library:
    """One whose threads get no memory to work in, which it reports as the header says."""
    library = load_library()
    if library is None:
        pytest.skip(missing_because())

    def draw_nothing(op: TgDraw) -> None:
        ctypes.cast(op.token_ids, ctypes.POINTER(ctypes.c_int64))[op.m - 1] = NO_MEMORY

    def find_nothing(op: TgLogprobs) -> None:
        ctypes.cast(op.logprobs, ctypes.POINTER(ctypes.c_float))[op.m - 1] = float("nan")

    library.start(None, num_threads=1, cpus=None)
    return replace(library, run_draw=draw_nothing, run_logprobs=find_nothing)


@pytest.mark.parametrize(
    ("sampling", "because"),
    [(params(), "to draw a token in"), (params(temperature=0.0, logprobs=1), "most probable tokens")],
    ids=["draw", "log-probabilities"],
)
def test_a_thread_without_memory_fails_the_step(starved: Library, sampling: SamplingParams, because: str) -> None:
    with pytest.raises(MemoryError, match=because):
        sample(torch.zeros(2, 8), [draw("a", sampling), draw("b", sampling)], EOS, CpuSamplerOps(starved))
