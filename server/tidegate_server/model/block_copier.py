"""Copies whole KV blocks: to the host, back, and within the device."""

import structlog
import torch
from torch import Tensor

from tidegate_server.engine.batch import BlockCopies, BlockCopy
from tidegate_server.model.copy_stream import CopyStream

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class BlockCopier:
    """One copy a block: a block is contiguous over all layers, and large enough that more at once gain nothing.

    Args:
        device_blocks, host_blocks: `[blocks, layers, 2, kv_heads, block_size, head_dim]`.
    """

    def __init__(self, device_blocks: Tensor, host_blocks: Tensor) -> None:
        self._device_blocks = device_blocks
        self._host_blocks = host_blocks
        self._stream = CopyStream(device_blocks.device)

    @property
    def num_host_blocks(self) -> int:
        """Usable ones, ids 1 to this number."""
        return max(0, len(self._host_blocks) - 1)

    def copy(self, copies: BlockCopies) -> BlockCopies:
        """See `engine.batch.Runner.copy_blocks`; `wait` returns once they are done.

        Raises:
            torch.AcceleratorError: the device is lost.
        """
        device, host = self._device_blocks, self._host_blocks
        with self._stream.copying():
            swap_out = _copy("out", copies.swap_out, device, host)
        if copies.swap_out:
            self._stream.hold_computing()  # what is copied out may be written to by what follows
        # On the stream that computes, between the forward pass before and the one that reads them.
        within = _copy("within", copies.within, device, device)
        with self._stream.copying():
            swap_in = _copy("in", copies.swap_in, host, device, after=swap_out)
        if copies.swap_in:
            self._stream.hold_computing()
        return BlockCopies(swap_out=swap_out, within=within, swap_in=swap_in)

    def wait(self) -> None:
        """Return once all copies to and from the host are done."""
        self._stream.wait()


def _copy(
    direction: str, copies: tuple[BlockCopy, ...], source: Tensor, target: Tensor, after: tuple[BlockCopy, ...] = ()
) -> tuple[BlockCopy, ...]:
    """Copy one block after the other; gives those that failed.

    Args:
        after: copies that failed before; what reads their targets fails too.
    """
    not_there = {copy.target for copy in after}
    failed: list[BlockCopy] = []
    last_error = ""
    for copy in copies:
        if copy.source in not_there:
            failed.append(copy)
            continue
        try:
            target[copy.target].copy_(source[copy.source], non_blocking=True)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            failed.append(copy)
            last_error = str(error)
    if failed:
        log.warning(
            "block_copies_failed", direction=direction, num_failed=len(failed), num_copies=len(copies),
            error=last_error, next="what the blocks held is computed again",
        )  # fmt: skip
    return tuple(failed)
