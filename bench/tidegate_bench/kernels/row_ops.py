"""What works on one row of activations at a time: the norm, and rows of the embedding."""

import itertools
from collections.abc import Iterator, Sequence
from ctypes import pointer

import torch
from torch import Tensor
from torch.nn import functional

from tidegate_bench.kernels.case import Case
from tidegate_bench.kernels.formats import WeightFormat
from tidegate_kernels.cpu.large_pages import LargePages
from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.structs import Dtype, TgEmbed, TgRmsNorm
from tidegate_server.model.config import ModelConfig

NUM_ROWS = (1, 64, 256)
NUM_PROMPTS = 64  # sets of token ids that take turns, so that their rows are in no cache


def rms_norm_cases(library: Library, config: ModelConfig, num_rows: Sequence[int] = NUM_ROWS) -> Iterator[Case]:
    """One case for each number of rows; the rows were just written, and lie in a cache as in a step."""
    for count in num_rows:
        yield _rms_norm_case(library, config, count)


def embed_cases(
    library: Library, config: ModelConfig, form: WeightFormat, num_rows: Sequence[int] = NUM_ROWS
) -> Iterator[Case]:
    """Rows out of a packed weight, as a tied head is one, beside rows of torch's embedding."""
    stored, plain = form.draw(config.vocab_size, config.hidden_size)
    packed = form.pack(library, stored, LargePages())
    for count in num_rows:
        prompts = [torch.randint(0, config.vocab_size, (count,)) for _ in range(NUM_PROMPTS)]
        y = torch.empty(count, config.hidden_size)
        ops = itertools.cycle(
            [
                TgEmbed(embedding=pointer(packed.struct), token_ids=ids.data_ptr(), y=y.data_ptr(), m=count)
                for ids in prompts
            ]
        )
        around = itertools.cycle(prompts)

        def run(ops: Iterator[TgEmbed] = ops, y: Tensor = y) -> Tensor:
            library.run_embed(next(ops))
            return y

        def run_torch(around: Iterator[Tensor] = around) -> Tensor:
            return functional.embedding(next(around), plain)

        yield Case(
            kernel="embed",
            what=f"rows of {config.hidden_size}",
            rows=count,
            data=form.name,
            moved_bytes=packed.weight.nbytes * count // config.vocab_size + y.nbytes,
            flop=0,
            peaks=form.peaks,
            ours=run,
            torch=run_torch,
            tolerance=form.tolerance,
            kept=(packed, prompts),
        )


def _rms_norm_case(library: Library, config: ModelConfig, count: int) -> Case:
    hidden, eps = config.hidden_size, config.rms_norm_eps
    x, weight, y = torch.randn(count, hidden), torch.randn(hidden), torch.empty(count, hidden)
    op = TgRmsNorm(
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        y=y.data_ptr(),
        m=count,
        n=hidden,
        x_stride=hidden,
        y_stride=hidden,
        eps=eps,
        y_dtype=Dtype.F32,
    )

    def run() -> Tensor:
        library.run_rms_norm(op)
        return y

    return Case(
        kernel="rms_norm",
        what=f"rows of {hidden}",
        rows=count,
        data="fp32",
        moved_bytes=x.nbytes + weight.nbytes + y.nbytes,
        flop=4 * count * hidden,
        peaks=("float32",),
        ours=run,
        torch=lambda: functional.rms_norm(x, (hidden,), weight, eps),
        tolerance=1e-4,
    )
