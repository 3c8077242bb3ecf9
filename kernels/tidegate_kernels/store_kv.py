"""Write keys and values into the paged cache in Triton: one program per token and KV head."""

import triton
import triton.language as tl
from torch import Tensor

NUM_WARPS = 1  # a head of 128 numbers is one 16-byte load for half the threads of a warp


@triton.jit
def store_kv_kernel(
    key_ptr,
    value_ptr,
    kv_cache_ptr,
    slot_mapping_ptr,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    cache_block_stride,
    cache_value_stride,
    cache_head_stride,
    head_dim,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)  # before any stride: int32 would wrap without a word
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    dims = tl.arange(0, BLOCK_DIM)
    mask = dims < head_dim
    key = tl.load(key_ptr + token * key_token_stride + head * key_head_stride + dims, mask=mask)
    value = tl.load(value_ptr + token * value_token_stride + head * value_head_stride + dims, mask=mask)
    cell_ptr = (
        kv_cache_ptr
        + (slot // BLOCK_SIZE) * cache_block_stride
        + head * cache_head_stride
        + (slot % BLOCK_SIZE) * head_dim
        + dims
    )
    tl.store(cell_ptr, key, mask=mask)
    tl.store(cell_ptr + cache_value_stride, value, mask=mask)


def store_kv(key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    """See `store_kv_reference.store_kv`, which defines it.

    Raises:
        ValueError: shapes, dtypes or strides that the kernel does not assume.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    block_size = kv_cache.shape[3]
    if value.shape != key.shape or kv_cache.shape[1:] != (2, num_kv_heads, block_size, head_dim):
        raise ValueError(
            f"key {tuple(key.shape)}, value {tuple(value.shape)} and kv_cache {tuple(kv_cache.shape)} do not fit"
        )
    if not key.dtype == value.dtype == kv_cache.dtype:
        raise ValueError(f"key, value and kv_cache differ in dtype: {key.dtype}, {value.dtype}, {kv_cache.dtype}")
    if key.stride(2) != 1 or value.stride(2) != 1 or kv_cache.stride()[3:] != (head_dim, 1):
        raise ValueError("key and value need a dense last dimension, kv_cache two dense last ones")
    if slot_mapping.shape != (num_tokens,) or not slot_mapping.is_contiguous():
        raise ValueError(f"slot_mapping must be a dense [{num_tokens}], not {tuple(slot_mapping.shape)}")

    if num_tokens:
        store_kv_kernel[(num_tokens, num_kv_heads)](
            key,
            value,
            kv_cache,
            slot_mapping,
            key.stride(0),
            key.stride(1),
            value.stride(0),
            value.stride(1),
            kv_cache.stride(0),
            kv_cache.stride(1),
            kv_cache.stride(2),
            head_dim,
            BLOCK_SIZE=block_size,
            BLOCK_DIM=triton.next_power_of_2(head_dim),
            num_warps=NUM_WARPS,
            enable_fp_fusion=False,  # it only moves numbers; said for every kernel, so that none is forgotten
        )
