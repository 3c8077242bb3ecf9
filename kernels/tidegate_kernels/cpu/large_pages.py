"""Memory in large pages, where the kernel has them: a step walks through all weights, and each page costs a look-up."""

import mmap
from contextlib import suppress

import torch
from torch import Tensor

PAGE_BYTES = 2 << 20
CHUNK_BYTES = 64 << 20
_ALIGNMENT_BYTES = 64  # a cache line, and a vector


class LargePages:
    """Hands out zeroed memory from chunks that ask for large pages; a chunk goes when nobody holds a part of it.

    Parts smaller than a page share one. What was not handed out, or never written, takes no memory.
    """

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.uint8)

    def take(self, num_bytes: int) -> Tensor:
        """Zeros, uint8 `[num_bytes]`, at a multiple of 64 bytes."""
        rounded = -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        if rounded > len(self._rest):
            self._rest = _chunk(max(rounded, CHUNK_BYTES))
        part, self._rest = self._rest[:num_bytes], self._rest[rounded:]
        return part


def _chunk(num_bytes: int) -> Tensor:
    """Zeros at a multiple of the page's size."""
    # Private: Python's default is shared memory, which gets large pages only where shmem_enabled says so, and no
    # distribution does.
    memory = mmap.mmap(-1, num_bytes + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    everything = torch.frombuffer(memory, dtype=torch.uint8)
    start = -everything.data_ptr() % PAGE_BYTES
    return everything[start : start + num_bytes]
