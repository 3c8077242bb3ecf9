"""Root-mean-square normalisation in Triton: one program per vector; reads x once, writes out once."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rms_norm_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    x_token_stride,
    x_head_stride,
    num_heads,
    hidden_size,
    eps,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # before any stride: int32 would wrap without a word
    token = row // num_heads
    head = row % num_heads
    cols = tl.arange(0, BLOCK)
    mask = cols < hidden_size
    x = tl.load(x_ptr + token * x_token_stride + head * x_head_stride + cols, mask=mask, other=0.0).to(tl.float32)
    inv_rms = tl.rsqrt(tl.sum(x * x, axis=0) / hidden_size + eps)
    # Rounded to x's dtype before the weight, like the reference; the product of two such numbers is exact in fp32.
    normed = (x * inv_rms).to(out_ptr.dtype.element_ty).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * hidden_size + cols, (normed * weight).to(out_ptr.dtype.element_ty), mask=mask)


def num_warps(hidden_size: int) -> int:
    """Warps of a program: eight elements a thread, which is one 16-byte load of bf16."""
    return min(max(int(triton.next_power_of_2(hidden_size)) // 256, 1), 8)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `rms_norm_reference.rms_norm`, which defines it.

    Raises:
        ValueError: not two or three dimensions, or the last one is strided, or the weight does not fit.
    """
    if x.dim() not in (2, 3) or x.stride(-1) != 1:
        raise ValueError(f"x must have 2 or 3 dimensions and a dense last one, not {tuple(x.shape)}, {x.stride()}")
    if weight.shape != x.shape[-1:] or weight.dtype != x.dtype or not weight.is_contiguous():
        raise ValueError(
            f"weight must be dense {tuple(x.shape[-1:])} {x.dtype}, not {tuple(weight.shape)} {weight.dtype}"
        )

    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    hidden_size = x.shape[-1]
    num_rows = x.numel() // hidden_size
    if num_rows:
        rms_norm_kernel[(num_rows,)](
            x,
            weight,
            out,
            x.stride(0),
            x.stride(1) if x.dim() == 3 else 0,
            x.shape[1] if x.dim() == 3 else 1,
            hidden_size,
            eps,
            BLOCK=triton.next_power_of_2(hidden_size),
            num_warps=num_warps(hidden_size),
            enable_fp_fusion=False,  # products and sums round as written, whatever the compiler sees around them
        )
    return out
