"""How far a kernel may be from its reference: one table for all ops."""

import torch
from torch import Tensor

# Absolute and relative. fp32 allows for another order of summation; the others for one rounding to the dtype on each
# side of a boundary, and for attention's weights, which the kernel rounds to the dtype before they meet the values.
TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float32: (2e-6, 1e-5),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (2e-2, 1.6e-2),
}

DTYPES = tuple(TOLERANCES)


def assert_agrees(actual: Tensor, expected: Tensor) -> None:
    """Equal shape and dtype, no NaN, and numbers as near as the dtype's line of the table says."""
    atol, rtol = TOLERANCES[expected.dtype]
    torch.testing.assert_close(actual.cpu(), expected.cpu(), atol=atol, rtol=rtol, equal_nan=False)
