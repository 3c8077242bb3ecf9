"""Products with packed weights, of a model's own shapes, beside torch's `linear`."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from ctypes import pointer
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tidegate_bench.kernels.case import Case, num_copies
from tidegate_bench.kernels.formats import WeightFormat
from tidegate_kernels.cpu.large_pages import LargePages
from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.packed_linear import PackedLinear
from tidegate_kernels.cpu.structs import Dtype, Epilogue, TgGemm
from tidegate_server.model.config import ModelConfig

ROWS = (1, 4, 16, 64, 256)


@dataclass(frozen=True, slots=True)
class Product:
    """One projection of a decoder, and what is done with its sums."""

    name: str
    num_inputs: int
    num_outputs: int
    epilogue: Epilogue

    @property
    def is_halved(self) -> bool:
        return self.epilogue is Epilogue.SILU_MUL

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.num_outputs // 2 if self.is_halved else self.num_outputs


def products_of(config: ModelConfig) -> tuple[Product, ...]:
    """A layer's four, and the head."""
    hidden = config.hidden_size
    return (
        Product("qkv", hidden, config.q_size + 2 * config.kv_size, Epilogue.STORE),
        Product("attention_out", config.q_size, hidden, Epilogue.ADD),
        Product("gate_up", hidden, 2 * config.intermediate_size, Epilogue.SILU_MUL),
        Product("down", config.intermediate_size, hidden, Epilogue.ADD),
        Product("head", hidden, config.vocab_size, Epilogue.STORE),
    )


def product_cases(library: Library, product: Product, form: WeightFormat, rows: Sequence[int] = ROWS) -> Iterator[Case]:
    """One case for each number of rows; they share the weights."""
    stored, plain = form.draw(product.num_outputs, product.num_inputs)
    memory = LargePages()  # as in the server
    first = form.pack(library, stored, memory, is_halved=product.is_halved)
    copies = num_copies(first.weight.nbytes)
    packed = [first, *(form.pack(library, stored, memory, is_halved=product.is_halved) for _ in range(copies - 1))]
    plains = [plain.clone() for _ in range(num_copies(plain.nbytes))]
    for num_rows in rows:
        x = torch.randn(num_rows, product.num_inputs).to(form.x_dtype)
        before = torch.randn(num_rows, product.width)
        y_dtype = form.x_dtype if product.is_halved else torch.float32
        y = before.to(y_dtype, copy=True)  # for ADD a residual stream, which the kernel changes
        written = y.nbytes * (2 if product.epilogue is Epilogue.ADD else 1)
        yield Case(
            kernel="gemm",
            what=f"{product.name} {product.num_inputs} → {product.num_outputs}",
            rows=num_rows,
            data=form.name,
            moved_bytes=first.weight.nbytes + x.nbytes + written,
            flop=2 * num_rows * product.num_inputs * product.num_outputs,
            peaks=form.peaks,
            ours=_ours(library, product, packed, x, y),
            torch=_torch(product, plains, x.to(form.torch_dtype), before.to(form.torch_dtype)),
            tolerance=form.tolerance,
            kept=(packed, x),
        )


def _ours(
    library: Library, product: Product, packed: Sequence[PackedLinear], x: Tensor, y: Tensor
) -> Callable[[], Tensor]:
    ops = itertools.cycle(
        [
            TgGemm(
                linear=pointer(one.struct),
                x=x.data_ptr(),
                y=y.data_ptr(),
                m=x.shape[0],
                x_stride=x.stride(0),
                y_stride=y.stride(0),
                epilogue=product.epilogue,
                y_dtype=Dtype.BF16 if y.dtype is torch.bfloat16 else Dtype.F32,
            )
            for one in packed
        ]
    )

    def call() -> Tensor:
        library.run_gemm(next(ops))
        return y

    return call


def _torch(product: Product, weights: Sequence[Tensor], x: Tensor, before: Tensor) -> Callable[[], Tensor]:
    around = itertools.cycle(weights)
    match product.epilogue:
        case Epilogue.STORE:
            return lambda: functional.linear(x, next(around))
        case Epilogue.ADD:
            return lambda: torch.addmm(before, x, next(around).T)
        case Epilogue.SILU_MUL:

            def call() -> Tensor:
                gate, up = functional.linear(x, next(around)).chunk(2, dim=-1)
                return functional.silu(gate) * up

            return call
