"""`x @ weight + bias` such that a row's bits do not depend on the rows beside it, as far as the library allows.

A matrix library picks another kernel for another number of rows, and another kernel may sum in another order. On a CPU
three things make the rows agree whatever their number, and cost nothing (SmolLM2-135M's layers in fp32 on two AVX-512
cores: 1 row 22 ms against 20, 8 rows 35 against 40, 256 rows 213 against 229 for plain `linear`):

- the weight lies with its inputs first, `[inputs, outputs]`: the kernels then vectorise over outputs and sum over
  inputs one after the other;
- in fp32, inputs are summed in spans of 512, as the library starts to split longer sums by the number of rows;
- a single row is computed as two, since the library treats it as a vector with a kernel of its own.

What another library or processor does is measured at load by `find_row_mode`: where rows do not agree, every product is
computed in tiles of 16 rows, which are one and the same shape for any batch.
"""

from collections.abc import Iterable
from enum import Enum, auto

import torch
from torch import Tensor

from tidegate_server.model.weights import LinearWeights

INPUT_SPAN = 512
MIN_ROWS = 2
TILE_ROWS = 16

# Either side of the sizes at which libraries are known to change kernels.
PROBED_ROWS = (1, 2, 3, 5, 8, 12, 17, 33, 63)
PROBE_ROWS = 64


class RowMode(Enum):
    """How products are computed."""

    PLAIN = auto()  # one product, whatever the library makes of it: on a GPU, today
    SPANS = auto()  # one product per span of inputs, at least two rows
    TILES = auto()  # the same, in tiles of a fixed number of rows


def linear(x: Tensor, weights: LinearWeights, mode: RowMode) -> Tensor:
    """Project rows.

    Args:
        x: `[rows, inputs]`, contiguous, at least one row.

    Returns:
        `[rows, outputs]` in the dtype of `x`.
    """
    match mode:
        case RowMode.PLAIN:
            out = x @ weights.weight
        case RowMode.SPANS:
            out = _spanned(_padded(x, MIN_ROWS), weights.weight)[: x.shape[0]]
        case RowMode.TILES:
            rows = _padded(x, -(-x.shape[0] // TILE_ROWS) * TILE_ROWS)
            tiles = [_spanned(tile, weights.weight) for tile in torch.split(rows, TILE_ROWS)]
            out = torch.cat(tiles)[: x.shape[0]]
    return out if weights.bias is None else out + weights.bias


def _padded(x: Tensor, num_rows: int) -> Tensor:
    missing = num_rows - x.shape[0]
    return torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing > 0 else x


def _spanned(x: Tensor, weight: Tensor) -> Tensor:
    if x.dtype != torch.float32:  # shorter formats would round at every span, and need none: see docs/exactness.md
        return x @ weight
    out = x[:, :INPUT_SPAN] @ weight[:INPUT_SPAN]
    for start in range(INPUT_SPAN, x.shape[1], INPUT_SPAN):
        out.addmm_(x[:, start : start + INPUT_SPAN], weight[start : start + INPUT_SPAN])
    return out


def find_row_mode(weights: Iterable[LinearWeights]) -> RowMode:
    """The cheapest mode in which rows agree on this machine, tried on one weight of each shape."""
    by_shape = {w.weight.shape: w for w in weights}
    if any(w.weight.device.type != "cpu" for w in by_shape.values()):
        return RowMode.PLAIN
    agree = all(rows_agree(w, RowMode.SPANS) for w in by_shape.values())
    return RowMode.SPANS if agree else RowMode.TILES


def rows_agree(weights: LinearWeights, mode: RowMode) -> bool:
    """Whether rows computed among few have the bits of the same rows computed among many."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(PROBE_ROWS, weights.weight.shape[0], generator=generator).to(weights.weight.dtype)
    among_many = linear(x, weights, mode)
    return all(torch.equal(linear(x[:n], weights, mode), among_many[:n]) for n in PROBED_ROWS)
