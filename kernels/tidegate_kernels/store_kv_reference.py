"""Write keys and values into the paged cache in plain torch: the definition that the Triton kernel must agree with."""

from torch import Tensor


def store_kv(key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write each token's key and value into its slot of one layer's cache.

    Args:
        key, value: `[num_tokens, num_kv_heads, head_dim]`, in the dtype of the cache.
        kv_cache: `[num_blocks, 2, num_kv_heads, block_size, head_dim]`, keys at index 0 and values at 1; one layer's
            strided view of `[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]`. Changed in place.
        slot_mapping: int64 `[num_tokens]`, slot = block id * block_size + offset. Slots of a step differ from each
            other, except those of padding tokens, which all point into the null block 0, whose content is never used.
    """
    block_size = kv_cache.shape[3]
    blocks = slot_mapping // block_size
    offsets = slot_mapping % block_size
    kv_cache[blocks, 0, :, offsets] = key
    kv_cache[blocks, 1, :, offsets] = value
