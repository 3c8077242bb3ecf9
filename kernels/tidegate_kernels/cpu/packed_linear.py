"""A projection's weight, laid out for the CPU's products."""

from collections.abc import Sequence
from ctypes import pointer
from dataclasses import dataclass

import torch
from torch import Tensor

from tidegate_kernels.cpu.large_pages import LargePages
from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.structs import PANEL, Dtype, Packing, TgLinear, TgPart

DTYPES = {torch.float32: Dtype.F32, torch.bfloat16: Dtype.BF16}


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Outputs of a weight as a GGUF file stores them."""

    blocks: Tensor  # uint8 [outputs, bytes of a row]; a row's bytes lie together
    packing: Packing
    num_inputs: int

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs, as of the numbers that these stand for."""
        return (self.blocks.shape[0], self.num_inputs)


WeightRows = Tensor | QuantizedRows
"""Outputs of a weight, `[outputs, inputs]`: numbers in fp32 or bfloat16, of any strides, or whole GGUF blocks."""


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """What the library's functions take, and the memory that it points to."""

    struct: TgLinear
    weight: Tensor  # uint8
    bias: Tensor | None  # fp32 [outputs]


def pack_linear(
    library: Library,
    parts: Sequence[WeightRows],
    bias: Tensor | None,
    packing: Packing,
    *,
    is_halved: bool = False,
    memory: LargePages | None = None,
) -> PackedLinear:
    """Lay a weight out in panels of 16 outputs; runs on the library's pool.

    Args:
        parts: the outputs, one after the other.
        bias: `[outputs]`, any float dtype.
        packing: a quantised one takes `QuantizedRows` of the same, the others take numbers.
        is_halved: the first half of the outputs is a gate for the second; their panels alternate.
        memory: where the packed weight goes; None: where torch puts it.

    Raises:
        ValueError: the parts do not fit together, or cannot be packed so.
    """
    num_inputs = parts[0].shape[1]
    num_outputs = sum(part.shape[0] for part in parts)
    if any(part.shape[1] != num_inputs for part in parts):
        raise ValueError(f"parts of {[part.shape[1] for part in parts]} inputs are no one weight")
    multiple = 2 if packing is Packing.BF16_PAIRS else library.block_inputs(packing)
    if num_inputs % multiple:
        raise ValueError(f"{num_inputs} inputs are no multiple of {multiple}, as {packing.name} needs")
    if is_halved and num_outputs % 2:
        raise ValueError(f"{num_outputs} outputs have no halves")
    halves = 2 if is_halved else 1
    num_panels = halves * -(-(num_outputs // halves) // PANEL)
    num_bytes = num_panels * library.panel_bytes(packing, num_inputs)
    # Zeros either way: what no output fills is multiplied too.
    weight = torch.zeros(num_bytes, dtype=torch.uint8) if memory is None else memory.take(num_bytes)
    bias = None if bias is None else bias.float().contiguous()
    struct = TgLinear(
        weight=weight.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        n=num_outputs,
        k=num_inputs,
        packing=packing,
        is_halved=is_halved,
    )
    first = 0
    for rows in parts:
        _pack_part(library, struct, first, rows)
        first += rows.shape[0]
    return PackedLinear(struct, weight, bias)


def _pack_part(library: Library, struct: TgLinear, first: int, rows: WeightRows) -> None:
    part = TgPart(linear=pointer(struct), first=first, count=rows.shape[0])
    if isinstance(rows, QuantizedRows):
        num_bytes = rows.num_inputs // library.block_inputs(rows.packing) * library.block_bytes(rows.packing)
        if rows.packing != struct.packing or rows.blocks.shape[1] != num_bytes or rows.blocks.stride(1) != 1:
            raise ValueError(
                f"rows of {rows.blocks.shape[1]} bytes of {rows.packing.name} do not pack as "
                f"{rows.num_inputs} inputs of {Packing(struct.packing).name}"
            )
        part.source, part.output_stride = rows.blocks.data_ptr(), rows.blocks.stride(0)
    else:
        if rows.dtype not in DTYPES or library.block_bytes(struct.packing):
            raise ValueError(f"numbers of {rows.dtype} do not pack as {Packing(struct.packing).name}")
        part.source, part.dtype = rows.data_ptr(), DTYPES[rows.dtype]
        part.output_stride, part.input_stride = rows.stride()
    library.pack(part)
