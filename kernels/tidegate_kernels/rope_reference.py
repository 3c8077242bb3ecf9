"""Rotary position embedding in plain torch: the definition that the Triton kernel must agree with."""

import torch
from torch import Tensor


def rope(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by the angles of their positions.

    Dimension `i` of the first half of a head is paired with dimension `i` of the second half (the NeoX order, which
    Llama checkpoints for transformers use), not with its neighbour.

    Args:
        query: `[num_tokens, num_q_heads, head_dim]`, `head_dim` even.
        key: `[num_tokens, num_kv_heads, head_dim]`, in the dtype of `query`.
        cos, sin: fp32 `[max_positions, head_dim // 2]`, one row a position; any scaling is already in them.
        positions: int64 `[num_tokens]`, each below `max_positions`.

    Returns:
        New contiguous tensors shaped and typed like `query` and `key`; computed in fp32 and rounded once.

    Source:
        Su et al. 2021, "RoFormer", equation 34, in the half-rotated order.
    """
    cos_rows = cos[positions].unsqueeze(1)  # [num_tokens, 1, head_dim // 2]
    sin_rows = sin[positions].unsqueeze(1)
    return _rotate(query, cos_rows, sin_rows), _rotate(key, cos_rows, sin_rows)


def _rotate(x: Tensor, cos_rows: Tensor, sin_rows: Tensor) -> Tensor:
    # Multiplications and additions stay separate operations: a fused one would round differently on other shapes.
    first, second = x.float().chunk(2, dim=-1)
    rotated = torch.cat((first * cos_rows - second * sin_rows, second * cos_rows + first * sin_rows), dim=-1)
    return rotated.to(x.dtype)
