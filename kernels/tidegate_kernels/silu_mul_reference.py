"""The gate of Llama's feed-forward layer in plain torch: the definition that the Triton kernel must agree with."""

from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """SiLU of the first half of each row, times the second half.

    Args:
        gate_up: `[num_tokens, 2 * intermediate]`, what the fused gate and up projection gives.

    Returns:
        A new contiguous `[num_tokens, intermediate]` in the dtype of `gate_up`; computed in fp32 and rounded once.

    Source:
        Shazeer 2020, "GLU Variants Improve Transformer" (SwiGLU).
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    # Spelled out rather than functional.silu: that rounds the last few elements of a thread's share differently, so
    # a row would depend on how many rows the batch has. exp does not, and the rest is exactly rounded arithmetic.
    denominator = gate.neg().exp_().add_(1.0)
    return (gate / denominator).mul_(up).to(gate_up.dtype)
