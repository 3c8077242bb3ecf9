"""Root-mean-square normalisation in plain torch: the definition that the Triton kernel must agree with."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale every vector along the last dimension to unit root mean square, then by `weight`.

    Args:
        x: `[num_tokens, hidden]`, or `[num_tokens, num_heads, head_dim]` for the norm of queries and keys.
        weight: `[hidden]` (`[head_dim]`), in the dtype of `x`.
        eps: added to the mean square, so that a zero vector stays finite.

    Returns:
        A new contiguous tensor shaped and typed like `x`. Squares are summed in fp32; the normalised value is rounded
        to the dtype of `x` before it meets the weight, as checkpoints were trained.

    Source:
        Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"; the rounding follows Llama in transformers.
    """
    x_f32 = x.float()
    inv_rms = torch.rsqrt(x_f32.square().mean(dim=-1, keepdim=True) + eps)
    return (x_f32 * inv_rms).to(x.dtype) * weight
