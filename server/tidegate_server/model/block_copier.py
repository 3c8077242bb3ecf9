"""Copies whole KV blocks: to the host, back, and within the device."""

from collections.abc import Iterable, Sequence

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
        self._leaving: dict[int, torch.cuda.Event | None] = {}  # device block -> the end of its copy to the host

    @property
    def num_host_blocks(self) -> int:
        """Usable ones, ids 1 to this number."""
        return max(0, len(self._host_blocks) - 1)

    def copy(self, copies: BlockCopies) -> BlockCopies:
        """See `engine.batch.Runner.copy_blocks`.

        On a GPU what is computed next comes after the copies within the device and from the host. Copies to the host
        may still run beside it: `before_writing` and `wait` are for them.

        Raises:
            torch.AcceleratorError: the device is lost.
        """
        device, host = self._device_blocks, self._host_blocks
        with self._stream.copying():
            # Those asked for last go first: what made them necessary is most likely written in this very step.
            swap_out = self._copy("out", copies.swap_out[::-1], device, host)
        self.before_writing(copy.target for copy in copies.within)
        within = self._copy("within", copies.within, device, device)  # on the stream that computes
        swap_in: tuple[BlockCopy, ...] = ()
        if copies.swap_in:
            with self._stream.copying():
                swap_in = self._copy("in", copies.swap_in, host, device, after=swap_out)
            self._stream.hold_computing(self._stream.mark())
        return BlockCopies(swap_out=swap_out, within=within, swap_in=swap_in)

    def before_writing(self, blocks: Iterable[int]) -> None:
        """Let what is computed next, and writes these blocks, come after what is copied out of them."""
        if self._leaving:
            for block in self._leaving.keys() & blocks:
                self._stream.hold_computing(self._leaving[block])

    def wait(self) -> None:
        """Return once all copies to and from the host are done."""
        self._stream.wait()
        self._leaving.clear()

    def _copy(
        self,
        direction: str,
        copies: Sequence[BlockCopy],
        source: Tensor,
        target: Tensor,
        after: Sequence[BlockCopy] = (),
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
                continue
            if target is self._host_blocks:
                self._leaving[copy.source] = self._stream.mark()
        if failed:
            log.warning(
                "block_copies_failed", direction=direction, num_failed=len(failed), num_copies=len(copies),
                error=last_error, next="what the blocks held is computed again",
            )  # fmt: skip
        return tuple(failed)
