"""How fast blocks move between device and host, tried once at start: preempting weighs it against computing again."""

import time
from collections.abc import Callable
from typing import Final

from tidegate_server.engine.batch import BlockCopies, BlockCopy
from tidegate_server.model.block_copier import BlockCopier

NUM_TRIED: Final = 32  # blocks: some 10 to 60 MB for models of today, so more than a core's caches
_TRIES: Final = 3  # whoever shares the machine makes a copy slower, never faster


def measure_swap_speed(
    copier: BlockCopier, num_blocks: int, block_bytes: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Bytes per second of the slower direction; 0.0 without host blocks. Overwrites blocks.

    Args:
        num_blocks: of the device, ids 1 to this number.
        block_bytes: of one of them.
        clock: seconds.
    """
    num_tried = min(num_blocks, copier.num_host_blocks, NUM_TRIED)
    if num_tried == 0:
        return 0.0
    copies = tuple(BlockCopy(block, block) for block in range(1, num_tried + 1))

    def seconds(direction: BlockCopies) -> float:
        started_s = clock()
        copier.copy(direction)
        copier.wait()
        return clock() - started_s

    out, back = BlockCopies(swap_out=copies), BlockCopies(swap_in=copies)
    seconds(out)  # the kernel gives memory at the first write, which no later one waits for
    slower_s = max(min(seconds(direction) for _ in range(_TRIES)) for direction in (out, back))
    return num_tried * block_bytes / slower_s
