"""What a kernel is timed on: ours and torch's function for the same numbers, and what they cost at least."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

# A step reads the whole model between two uses of a weight or of a request's keys, so neither is found in a cache. A
# case goes round among copies that fill so much together: as much as the embedded model's weights in bfloat16.
COLD_BYTES = 256 << 20
MAX_COPIES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the table.

    The functions give their result, and their first calls give the same one but for rounding.
    """

    kernel: str  # the C file's name
    what: str  # which of its uses, with the shape
    rows: int  # tokens, or requests where each has one
    data: str  # how the weights or the KV cache lie in memory
    moved_bytes: int  # each input read and each output written once
    flop: int
    peaks: tuple[str, ...]  # dtypes of torch's product whose speed bounds the arithmetic; the highest counts
    ours: Callable[[], Tensor]
    torch: Callable[[], Tensor]
    tolerance: float  # relative to the largest number of torch's result
    kept: object = None  # memory that `ours` points to, where nothing else keeps it


def num_copies(size_bytes: int) -> int:
    """Copies of something that together are found in no cache."""
    return max(1, min(MAX_COPIES, -(-COLD_BYTES // size_bytes)))
