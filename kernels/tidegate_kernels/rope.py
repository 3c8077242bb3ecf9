"""Rotary position embedding in Triton: one program per token rotates all its query and key heads."""

import torch
import triton
import triton.language as tl
from torch import Tensor

NUM_WARPS = 4


@triton.jit
def _rotate_heads(
    x_ptr,
    out_ptr,
    head_stride,
    cos,
    sin,
    half_dim,
    NUM_HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    heads = tl.arange(0, BLOCK_HEADS)[:, None].to(tl.int64)
    dims = tl.arange(0, BLOCK_HALF)[None, :]
    mask = (heads < NUM_HEADS) & (dims < half_dim)
    first = tl.load(x_ptr + heads * head_stride + dims, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + heads * head_stride + half_dim + dims, mask=mask, other=0.0).to(tl.float32)
    out = out_ptr + heads * (2 * half_dim) + dims
    dtype = out_ptr.dtype.element_ty
    tl.store(out, (first * cos - second * sin).to(dtype), mask=mask)
    tl.store(out + half_dim, (second * cos + first * sin).to(dtype), mask=mask)


@triton.jit
def rope_kernel(
    query_ptr,
    key_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    query_out_ptr,
    key_out_ptr,
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    half_dim,
    NUM_Q_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_Q_HEADS: tl.constexpr,
    BLOCK_KV_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)  # before any stride: int32 would wrap without a word
    position = tl.load(positions_ptr + token)
    dims = tl.arange(0, BLOCK_HALF)[None, :]
    cos = tl.load(cos_ptr + position * half_dim + dims, mask=dims < half_dim, other=0.0)  # [1, BLOCK_HALF]
    sin = tl.load(sin_ptr + position * half_dim + dims, mask=dims < half_dim, other=0.0)
    _rotate_heads(
        query_ptr + token * query_token_stride,
        query_out_ptr + token * NUM_Q_HEADS * 2 * half_dim,
        query_head_stride,
        cos,
        sin,
        half_dim,
        NUM_Q_HEADS,
        BLOCK_Q_HEADS,
        BLOCK_HALF,
    )
    _rotate_heads(
        key_ptr + token * key_token_stride,
        key_out_ptr + token * NUM_KV_HEADS * 2 * half_dim,
        key_head_stride,
        cos,
        sin,
        half_dim,
        NUM_KV_HEADS,
        BLOCK_KV_HEADS,
        BLOCK_HALF,
    )


def rope(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """See `rope_reference.rope`, which defines it.

    Raises:
        ValueError: shapes, dtypes or strides that the kernel does not assume.
    """
    num_tokens, num_q_heads, head_dim = query.shape
    num_kv_heads = key.shape[1]
    if key.shape != (num_tokens, num_kv_heads, head_dim) or key.dtype != query.dtype:
        raise ValueError(f"key {tuple(key.shape)} {key.dtype} does not fit query {tuple(query.shape)} {query.dtype}")
    if query.stride(2) != 1 or key.stride(2) != 1:
        raise ValueError("query and key need a dense last dimension")
    for name, table in (("cos", cos), ("sin", sin)):
        if table.shape[1:] != (head_dim // 2,) or table.dtype != torch.float32 or not table.is_contiguous():
            raise ValueError(f"{name} must be dense fp32 [max_positions, {head_dim // 2}], not {tuple(table.shape)}")
    if positions.shape != (num_tokens,) or not positions.is_contiguous():
        raise ValueError(f"positions must be a dense [{num_tokens}], not {tuple(positions.shape)}")

    query_out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    key_out = torch.empty(key.shape, dtype=key.dtype, device=key.device)
    if num_tokens:
        rope_kernel[(num_tokens,)](
            query,
            key,
            cos,
            sin,
            positions,
            query_out,
            key_out,
            query.stride(0),
            query.stride(1),
            key.stride(0),
            key.stride(1),
            head_dim // 2,
            NUM_Q_HEADS=num_q_heads,
            NUM_KV_HEADS=num_kv_heads,
            BLOCK_Q_HEADS=triton.next_power_of_2(num_q_heads),
            BLOCK_KV_HEADS=triton.next_power_of_2(num_kv_heads),
            BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
            num_warps=NUM_WARPS,
            enable_fp_fusion=False,  # a fused multiply-add would rotate by one rounding less than the reference
        )
    return query_out, key_out
