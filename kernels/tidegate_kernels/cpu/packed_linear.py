"""A projection's weight, laid out for the CPU's products."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.structs import PANEL, Dtype, Packing, TgLinear

_DTYPES = {torch.float32: Dtype.F32, torch.bfloat16: Dtype.BF16}


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """What the library's functions take, and the memory that it points to."""

    struct: TgLinear
    weight: Tensor
    bias: Tensor | None  # fp32 [outputs]


def pack_linear(
    library: Library, weight: Tensor, bias: Tensor | None, packing: Packing, *, is_halved: bool = False
) -> PackedLinear:
    """Lay a weight out in panels of 16 outputs; runs on the library's pool.

    Args:
        weight: `[inputs, outputs]`, fp32 or bfloat16; rows may lie apart, outputs may not.
        bias: `[outputs]`, any float dtype.
        is_halved: the first half of the outputs is a gate for the second; their panels alternate.

    Raises:
        ValueError: the weight's dtype or layout is none of these, or cannot be packed so.
    """
    num_inputs, num_outputs = weight.shape
    if weight.dtype not in _DTYPES or weight.stride(1) != 1:
        raise ValueError(f"weights are packed from rows of fp32 or bfloat16, not {weight.dtype} {weight.stride()}")
    if packing is Packing.BF16_PAIRS and num_inputs % 2:
        raise ValueError(f"{num_inputs} inputs do not make pairs")
    if is_halved and num_outputs % 2:
        raise ValueError(f"{num_outputs} outputs have no halves")
    parts = 2 if is_halved else 1
    num_panels = parts * -(-(num_outputs // parts) // PANEL)
    packed = torch.empty(
        num_panels, num_inputs, PANEL, dtype=torch.float32 if packing is Packing.F32 else torch.bfloat16
    )
    bias = None if bias is None else bias.float().contiguous()
    struct = TgLinear(
        weight=packed.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        n=num_outputs,
        k=num_inputs,
        packing=packing,
        is_halved=is_halved,
    )
    library.pack(struct, weight.data_ptr(), weight.stride(0), _DTYPES[weight.dtype])
    return PackedLinear(struct, packed, bias)
