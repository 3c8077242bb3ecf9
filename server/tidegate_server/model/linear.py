"""`x @ weight + bias` such that a row's bits do not depend on the rows beside it, as far as the library allows.

A matrix library picks another kernel for another number of rows, and another kernel may sum in another order. On a CPU
two things make most numbers of rows agree, and cost next to nothing:

- the weight lies with its inputs first, `[inputs, outputs]`: the kernels then vectorise over outputs and sum over
  inputs one after the other;
- in fp32, inputs are summed in short spans, as the library splits longer sums by the number of rows.

Which numbers of rows agree then is a matter of processor and library, so it is measured at load (`find_row_plan`). With
AVX-512 all from two rows on do. Elsewhere products are cut into tiles of those sizes that do, the same few shapes for
any batch. docs/exactness.md has the measurements.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tidegate_server.model.weights import LinearWeights

INPUT_SPAN = 384
"""Most inputs summed in one product. MKL splits sums from some 500 inputs on with AVX2, from 1,000 on with AVX-512."""
SPAN_MULTIPLE = 16  # fp32 numbers in a cache line: every span starts on one

MIN_ROWS = 2  # one row is a vector, for which libraries have kernels of their own

TILE_SIZES = (4, 16, 64)
"""AVX2's kernels take 12 rows at a time and differ where 8 of them remain, so these sizes all leave 4."""

# Either side of the sizes at which libraries are known to change kernels.
PROBED_ROWS = (1, 2, 3, 5, 8, 13, 31)
PROBE_ROWS = 64  # a whole number of tiles of any size


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How the rows of products are cut."""

    name: str  # for the log
    is_spanned: bool  # sum fp32 inputs in spans
    min_rows: int
    tiles: tuple[int, ...] | None  # ascending sizes; None: all rows together


PLAIN = RowPlan("plain", is_spanned=False, min_rows=1, tiles=None)
"""Whatever the library makes of it: on a GPU, today."""
TOGETHER = RowPlan("together", is_spanned=True, min_rows=MIN_ROWS, tiles=None)
"""All rows in one product."""


def tiled(sizes: tuple[int, ...]) -> RowPlan:
    return RowPlan(f"tiles of {', '.join(map(str, sizes))}", is_spanned=True, min_rows=1, tiles=sizes)


def linear(x: Tensor, weights: LinearWeights, plan: RowPlan) -> Tensor:
    """Project rows.

    Args:
        x: `[rows, inputs]`, contiguous, at least one row.

    Returns:
        `[rows, outputs]` in the dtype of `x`.
    """
    num_rows = x.shape[0]
    if plan.tiles is None:
        out = _product(_padded(x, plan.min_rows), weights.weight, plan)[:num_rows]
    else:
        sizes = list(tile_rows(num_rows, plan.tiles))
        tiles = torch.split(_padded(x, sum(sizes)), sizes)
        out = torch.cat([_product(tile, weights.weight, plan) for tile in tiles])[:num_rows]
    return out if weights.bias is None else out + weights.bias


def tile_rows(num_rows: int, sizes: tuple[int, ...]) -> Iterator[int]:
    """Tiles that cover so many rows, the largest first; one that would be at least half full beats several smaller.

    Args:
        sizes: ascending.
    """
    while num_rows > 0:
        size = max((s for s in sizes if s <= 2 * num_rows), default=sizes[0])
        yield size
        num_rows -= size


def _padded(x: Tensor, num_rows: int) -> Tensor:
    missing = num_rows - x.shape[0]
    return torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing > 0 else x


def _product(x: Tensor, weight: Tensor, plan: RowPlan) -> Tensor:
    num_inputs = x.shape[1]
    # Shorter formats would round at every span, and need none.
    if not plan.is_spanned or num_inputs <= INPUT_SPAN or x.dtype != torch.float32:
        return x @ weight
    num_spans = -(-num_inputs // INPUT_SPAN)
    span = -(-num_inputs // (num_spans * SPAN_MULTIPLE)) * SPAN_MULTIPLE
    out = x[:, :span] @ weight[:span]
    for start in range(span, num_inputs, span):
        out.addmm_(x[:, start : start + span], weight[start : start + span])
    return out


def find_row_plan(weights: Iterable[LinearWeights]) -> RowPlan:
    """The cheapest plan under which rows agree on this machine, tried on one weight of each shape."""
    by_shape = list({w.weight.shape: w for w in weights}.values())
    if any(w.weight.device.type != "cpu" for w in by_shape):
        return PLAIN
    if all(rows_agree(w, TOGETHER) for w in by_shape):
        return TOGETHER
    kinds_of_size = zip(*(_kinds(w) for w in by_shape), strict=True)  # per tile size its kind for each weight
    groups: dict[tuple[int | None, ...], tuple[int, ...]] = {}
    for size, kinds in zip(TILE_SIZES, kinds_of_size, strict=True):
        if None not in kinds:
            groups[kinds] = (*groups.get(kinds, ()), size)
    return tiled(max(groups.values(), key=len, default=(1,)))


def rows_agree(weights: LinearWeights, plan: RowPlan) -> bool:
    """Whether rows computed among few have the bits of the same rows computed among many, in any place."""
    x = _probe(weights)
    among_many = linear(x, weights, plan)
    agree = all(torch.equal(linear(x[:n], weights, plan), among_many[:n]) for n in PROBED_ROWS)
    return agree and torch.equal(linear(x.flip(0), weights, plan), among_many.flip(0))


def _kinds(weights: LinearWeights) -> list[int | None]:
    """For each tile size the first size that gives the same bits, or None where a row's place in the tile matters."""
    x = _probe(weights)
    outputs = [linear(x, weights, tiled((size,))) for size in TILE_SIZES]
    kinds: list[int | None] = []
    for size, out in zip(TILE_SIZES, outputs, strict=True):
        is_steady = torch.equal(linear(x.flip(0), weights, tiled((size,))), out.flip(0))
        first = next(s for s, other in zip(TILE_SIZES, outputs, strict=True) if torch.equal(out, other))
        kinds.append(first if is_steady else None)
    return kinds


def _probe(weights: LinearWeights) -> Tensor:
    """Random rows: sums in two different orders would differ somewhere among so many numbers."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(PROBE_ROWS, weights.weight.shape[0], generator=generator).to(weights.weight.dtype)
