"""Positions of a request's tokens to slots of the paged KV cache."""

from collections.abc import Sequence


class BlockTableTooShort(ValueError):
    """A position lies past the last block of a block table."""

    def __init__(self, num_blocks: int, block_size: int, stop: int) -> None:
        super().__init__(f"{num_blocks} blocks of {block_size} tokens end before position {stop - 1}")


def slot_mapping(block_table: Sequence[int], start: int, stop: int, block_size: int) -> list[int]:
    """Map a run of token positions to slots of the paged KV cache.

    Args:
        block_table: block ids in position order.
        start, stop: half-open range of positions, in tokens.
        block_size: tokens per block.

    Returns:
        `stop - start` slots, in position order; none when the range is empty.

    Raises:
        BlockTableTooShort: `stop` lies past the last block.

    Source:
        PagedAttention, Kwon et al. 2023, §4.1.
    """
    if stop > len(block_table) * block_size:
        raise BlockTableTooShort(len(block_table), block_size, stop)
    slots: list[int] = []
    position = start
    while position < stop:
        index, offset = divmod(position, block_size)
        run_length = min(block_size - offset, stop - position)
        first_slot = block_table[index] * block_size + offset
        slots.extend(range(first_slot, first_slot + run_length))
        position += run_length
    return slots
