"""Computations whose rows must not know of each other, and a look at whether they do."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tidegate_server.engine.exactness import Difference

WINDOWS = (1, 2, 3, 5, 8, 17, 28, 64, 128)
"""Rows that are computed together, a few at a time: either side of the heights of tiles in the kernels in C, and of the
numbers of rows at which libraries change kernels. All rows together are 11, 19, 64, 128 or 256."""

FEW_ROWS = 11
"""Of the sampler, to which a row is 1,000 times as long as to others."""
HEAD_ROWS = 19
"""Of the head, whose weight is as large as those of several layers."""
ROWS = 64
"""Reach every path of the kernels in C: the tallest tiles, and weights widened for many rows."""
MANY_ROWS = 256
"""For matrix libraries, which change kernels with larger numbers too."""

# Queries of a long context, either side of the end of the first span of 256 keys.
ATTENTION_ROWS = 128
FIRST_POSITION = 200
CONTEXT_LEN = FIRST_POSITION + ATTENTION_ROWS


@dataclass(frozen=True, slots=True)
class RowOp:
    """One op on rows of its own that never change."""

    name: str  # with its sizes, for people
    num_rows: int
    run: Callable[[list[int]], Tensor]
    """Computes some of its rows together, in this order: `[len(rows), ...]`."""


def find_difference(op: RowOp) -> Difference | None:
    """Compute all rows together, then each again in a smaller batch; the smallest batch that gives other bits."""
    together = op.run(list(range(op.num_rows)))
    for rows in _windows(op.num_rows):
        if not torch.equal(_bits(op.run(rows)), _bits(together[rows])):
            return Difference(op.name, f"{_counted(len(rows))} against the same among {op.num_rows}")
    return None


def _windows(num_rows: int) -> Iterator[list[int]]:
    """Every row once, in lists of the lengths of WINDOWS: the shorter ones of rows that lie apart, for attention takes
    neighbours for a prompt's chunk, and the longer ones of neighbours."""
    half = num_rows // 2
    order = [*range(half - 1, -1, -2), *range(half - 2, -1, -2), *range(half, num_rows)]
    start = 0
    for length in WINDOWS:
        if window := order[start : start + length]:
            yield window
        start += length


def _bits(values: Tensor) -> Tensor:
    """As bytes: numbers that compare as equal may still differ, as zeros of both signs do."""
    return values.contiguous().view(torch.uint8)


def _counted(num_rows: int) -> str:
    return "a row alone" if num_rows == 1 else f"{num_rows} rows together"


def random_rows(*shape: int) -> Tensor:
    """Always the same fp32 numbers: sums of so many in two orders would differ somewhere."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True, slots=True)
class Requests:
    """Queries of one context as a step's requests."""

    block_table: Tensor  # int32 [num_requests, num_blocks]
    query_start: Tensor  # int32 [num_requests + 1]
    context_len: Tensor  # int32 [num_requests]


def as_requests(rows: Sequence[int], block_size: int) -> Requests:
    """Rows that follow each other are a chunk of a prompt, any other a decode; row 0 stands at FIRST_POSITION."""
    starts = [i for i, row in enumerate(rows) if i == 0 or row != rows[i - 1] + 1]
    lasts = [stop - 1 for stop in (*starts[1:], len(rows))]
    blocks = torch.arange(1, num_blocks(CONTEXT_LEN, block_size) + 1, dtype=torch.int32)
    return Requests(
        block_table=blocks.repeat(len(starts), 1),
        query_start=torch.tensor([*starts, len(rows)], dtype=torch.int32),
        context_len=torch.tensor([FIRST_POSITION + rows[last] + 1 for last in lasts], dtype=torch.int32),
    )


def num_blocks(num_tokens: int, block_size: int) -> int:
    """Blocks for so many tokens, the null block not counted."""
    return -(-num_tokens // block_size)
