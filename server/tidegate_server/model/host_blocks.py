"""Host memory for KV blocks that left the device."""

import math

import torch
from torch import Tensor

from tidegate_kernels.cpu.large_pages import LargePages


def allocate_host_blocks(num_blocks: int, device_blocks: Tensor) -> Tensor:
    """`[num_blocks + 1, layers, 2, kv_heads, block_size, head_dim]`, or none: shaped like the device's blocks.

    Block 0 is never used, so that ids count from 1 as on the device. On a CPU, blocks that were never written take no
    memory. For a GPU all of them are page-locked for good, without which no copy runs beside a kernel.

    Raises:
        OSError, RuntimeError: there is no such memory, or it cannot be page-locked.
    """
    shape = (num_blocks + 1 if num_blocks else 0, *device_blocks.shape[1:])
    memory = LargePages().take(math.prod(shape) * device_blocks.dtype.itemsize)
    if num_blocks and device_blocks.is_cuda:
        _lock_pages(memory)
    return memory.view(device_blocks.dtype).view(shape)


def _lock_pages(memory: Tensor) -> None:
    # torch's own page-locked memory is rounded up to a power of two: 5 GiB would take 8.
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    torch.cuda.check_error(cudart.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
