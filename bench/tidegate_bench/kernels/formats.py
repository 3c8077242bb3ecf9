"""How weights can lie in memory: one entry a format, which is all that a new one needs to be measured."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from torch import Tensor

from tidegate_kernels.cpu.large_pages import LargePages
from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.packed_linear import PackedLinear, QuantizedRows, WeightRows, pack_linear
from tidegate_kernels.cpu.structs import Packing

Draw = Callable[[int, int], tuple[WeightRows, Tensor]]
"""From outputs and inputs, a weight at random: as it is packed, and the same numbers as torch multiplies them."""

SCALE = 1e-3  # of blocks whose bytes are drawn, for numbers of the size of a model's


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """One packing, and what torch multiplies beside it."""

    packing: Packing
    draw: Draw
    peaks: tuple[str, ...] = ("float32",)  # dtypes of torch's product whose speed bounds the arithmetic
    tolerance: float = 1e-4  # of a product against torch's, relative to the largest output
    x_dtype: torch.dtype = torch.float32  # of what the product reads
    torch_dtype: torch.dtype = torch.float32  # of torch's weights and of its input
    only_isa: str | None = None

    @property
    def name(self) -> str:
        return self.packing.name.lower()

    def pack(self, library: Library, rows: WeightRows, memory: LargePages, *, is_halved: bool = False) -> PackedLinear:
        return pack_linear(library, [rows], None, self.packing, is_halved=is_halved, memory=memory)

    def takes(self, library: Library, num_inputs: int) -> bool:
        """Whether a weight of so many inputs consists of whole blocks."""
        return num_inputs % max(1, library.block_inputs(self.packing)) == 0


def _numbers(dtype: torch.dtype) -> Draw:
    def draw(num_outputs: int, num_inputs: int) -> tuple[WeightRows, Tensor]:
        weight = (torch.randn(num_outputs, num_inputs) / num_inputs**0.5).to(dtype)
        return weight, weight

    return draw


def _quantized(packing: Packing) -> Draw:
    type_ = GGMLQuantizationType[packing.name]

    def draw(num_outputs: int, num_inputs: int) -> tuple[WeightRows, Tensor]:
        weight = torch.randn(num_outputs, num_inputs) / num_inputs**0.5
        return _both(quantize(weight.numpy(), type_), packing, num_inputs)

    return draw


def _drawn_blocks(packing: Packing, scale_offsets: tuple[int, ...]) -> Draw:
    """For formats that the `gguf` package only reads: any bytes are a block, once its fp16 scales are sound numbers."""
    block_inputs, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[packing.name]]

    def draw(num_outputs: int, num_inputs: int) -> tuple[WeightRows, Tensor]:
        shape = (num_outputs, num_inputs // block_inputs, block_bytes)
        blocks = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        for offset in scale_offsets:
            blocks[..., offset : offset + 2] = np.array([SCALE], dtype=np.float16).view(np.uint8)
        return _both(blocks.reshape(num_outputs, -1), packing, num_inputs)

    return draw


def _both(
    blocks: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]", packing: Packing, num_inputs: int
) -> tuple[WeightRows, Tensor]:
    plain = torch.from_numpy(dequantize(blocks, GGMLQuantizationType[packing.name]))
    return QuantizedRows(torch.from_numpy(blocks), packing, num_inputs), plain


FORMATS = (
    WeightFormat(packing=Packing.F32, draw=_numbers(torch.float32)),
    WeightFormat(packing=Packing.BF16, draw=_numbers(torch.bfloat16), torch_dtype=torch.bfloat16, tolerance=3e-2),
    WeightFormat(
        packing=Packing.BF16_PAIRS,
        draw=_numbers(torch.bfloat16),
        peaks=("float32", "bfloat16"),
        tolerance=3e-2,
        x_dtype=torch.bfloat16,
        torch_dtype=torch.bfloat16,
        only_isa="avx512bf16",
    ),
    # Beside the quantised ones torch multiplies their numbers in fp32: it has no product for blocks.
    WeightFormat(packing=Packing.Q8_0, draw=_quantized(Packing.Q8_0)),
    WeightFormat(packing=Packing.Q4_0, draw=_quantized(Packing.Q4_0)),
    WeightFormat(packing=Packing.Q4_1, draw=_quantized(Packing.Q4_1)),
    WeightFormat(packing=Packing.Q4_K, draw=_drawn_blocks(Packing.Q4_K, (0, 2))),
    WeightFormat(packing=Packing.Q6_K, draw=_drawn_blocks(Packing.Q6_K, (208,))),
)


def formats_of(library: Library) -> tuple[WeightFormat, ...]:
    """Those that the started library can multiply with its instruction set."""
    return tuple(form for form in FORMATS if form.only_isa in (None, library.isa()))
