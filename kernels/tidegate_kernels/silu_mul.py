"""The gate of Llama's feed-forward layer in Triton: one program per piece of a row; reads each half once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

NUM_WARPS = 4
BLOCK = 1024
"""Elements of the output that a program computes: eight a thread, which is one 16-byte load of bf16 each half."""


@triton.jit
def silu_mul_kernel(gate_up_ptr, out_ptr, token_stride, intermediate_size, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)  # before any stride: int32 would wrap without a word
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < intermediate_size
    row_ptr = gate_up_ptr + token * token_stride
    gate = tl.load(row_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(row_ptr + intermediate_size + cols, mask=mask, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + token * intermediate_size + cols, out.to(out_ptr.dtype.element_ty), mask=mask)


def silu_mul(gate_up: Tensor) -> Tensor:
    """See `silu_mul_reference.silu_mul`, which defines it.

    Raises:
        ValueError: not two dimensions, an odd last one, or a strided one.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or gate_up.stride(1) != 1:
        raise ValueError(
            f"gate_up must be [num_tokens, 2 * intermediate] with dense rows, not {tuple(gate_up.shape)}, "
            f"strides {gate_up.stride()}"
        )

    num_tokens, intermediate_size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_tokens, intermediate_size), dtype=gate_up.dtype, device=gate_up.device)
    if num_tokens:
        silu_mul_kernel[(num_tokens, triton.cdiv(intermediate_size, BLOCK))](
            gate_up,
            out,
            gate_up.stride(0),
            intermediate_size,
            BLOCK=BLOCK,
            num_warps=NUM_WARPS,
            enable_fp_fusion=False,  # products and sums round as written, whatever the compiler sees around them
        )
    return out
