"""A model whose next token is the last plus one, with a paged memory that notices every block it should not share."""

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal
from zlib import crc32

from tidegate_server.engine.batch import (
    Batch,
    BlockCopies,
    BlockCopy,
    RunnerBroken,
    SampledToken,
    ScheduledRequest,
)
from tidegate_server.engine.block_pool import NULL_BLOCK
from tidegate_server.engine.exactness import Exactness
from tidegate_server.engine.slots import slot_mapping
from tidegate_server.errors import BadLogits, ModelNotFound
from tidegate_server.model_source import ModelFiles
from tidegate_server.settings import EngineSettings

BAD_TOKEN = 966  # a prompt with it makes the step fail
NAN_TOKEN = 977  # a prompt with it has no usable logits
DEADLY_TOKEN = 988  # a prompt with it takes the device down
STUCK_TOKEN = 955  # a prompt with it makes a step that never ends

CopyDirection = Literal["swap_out", "swap_in", "within"]  # the fields of BlockCopies


class ClobberedBlock(AssertionError):
    """A slot that a request reads does not hold what the request wrote there."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One token's entry in the cache: a checksum over it and everything before it, as attention would see it."""

    token_id: int
    checksum: int


Memory = list[Cell | None]  # a cell for each slot; None where nothing was written


def _never(direction: CopyDirection, copy: BlockCopy) -> bool:
    return False


@dataclass
class CountingRunner:
    """Behaves like a runner: writes each new token to its slot, reads the whole context back, draws.

    With `mixes`, the drawn token depends on every token of the context, the seed and the position instead.

    A copy that `copy_fails` picks fails and leaves its target empty, so that whoever reads it is noticed; it is asked
    once for each copy, in order.
    """

    num_kv_blocks: int = 64
    block_size: int = 4
    max_model_len: int = 256
    lowered_from: int | None = None
    vocab_size: int = 1000
    eos_token_ids: tuple[int, ...] = ()
    mixes: bool = False
    device: str = "cpu"
    dtype: str = "float32"
    kernels: str = "torch"
    exactness: Exactness | None = None
    num_host_blocks: int = 0
    block_bytes: int = 1024
    swap_bytes_per_s: float = 0.0
    copy_fails: Callable[[CopyDirection, BlockCopy], bool] = _never
    batches: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._memory: Memory = [None] * ((self.num_kv_blocks + 1) * self.block_size)
        self._host_memory: Memory = [None] * ((self.num_host_blocks + 1) * self.block_size)

    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        self.batches.append(batch)
        for share in batch.scheduled:
            self._fail_where_asked(share)
        written: set[int] = set()
        for share in batch.scheduled:
            slots = self._write(share)
            assert written.isdisjoint(slots), "two requests write to one slot in one step"
            written.update(slots)
        return tuple(self._draw(share) for share in batch.scheduled if share.sampling is not None)

    def copy_blocks(self, copies: BlockCopies) -> BlockCopies:
        device, host = self._memory, self._host_memory
        swap_out = self._copy("swap_out", copies.swap_out, device, host)
        within = self._copy("within", copies.within, device, device)
        swap_in = self._copy("swap_in", copies.swap_in, host, device, after=swap_out)
        return BlockCopies(swap_out=swap_out, within=within, swap_in=swap_in)

    def _copy(
        self,
        direction: CopyDirection,
        copies: tuple[BlockCopy, ...],
        source: Memory,
        target: Memory,
        after: tuple[BlockCopy, ...] = (),
    ) -> tuple[BlockCopy, ...]:
        """Copy cells; gives those that failed: `copy_fails` says so, or they read what failed before."""
        not_there = {copy.target for copy in after}
        failed = tuple(copy for copy in copies if self.copy_fails(direction, copy) or copy.source in not_there)
        for copy in copies:
            cells = [source[slot] for slot in self._slots(copy.source)]
            for slot, cell in zip(self._slots(copy.target), cells, strict=True):
                target[slot] = None if copy in failed else cell
        return failed

    def _slots(self, block: int) -> range:
        assert block != NULL_BLOCK
        return range(block * self.block_size, (block + 1) * self.block_size)

    def _fail_where_asked(self, share: ScheduledRequest) -> None:
        if BAD_TOKEN in share.token_ids:
            raise ValueError(f"token {BAD_TOKEN} is bad")
        if NAN_TOKEN in share.token_ids:
            raise BadLogits(share.request_id, share.stop)
        if DEADLY_TOKEN in share.token_ids:
            raise RunnerBroken("the device fell off the bus")
        if STUCK_TOKEN in share.token_ids:
            threading.Event().wait()

    def _write(self, share: ScheduledRequest) -> Sequence[int]:
        if share.sampling is None and tuple(share.block_table) == (NULL_BLOCK,):
            return ()  # where whatever is written is read by nobody
        assert NULL_BLOCK not in share.block_table
        assert share.num_new_tokens > 0
        slots = slot_mapping(share.block_table, share.start, share.stop, self.block_size)
        checksum = self._context(share, share.start)
        for slot, token_id in zip(slots, share.token_ids, strict=True):
            checksum = _extend(checksum, token_id)
            self._memory[slot] = Cell(token_id, checksum)
        return slots

    def _context(self, share: ScheduledRequest, stop: int) -> int:
        """Read positions 0 to `stop` back through the block table; gives the checksum of the last."""
        checksum = 0
        for position, slot in enumerate(slot_mapping(share.block_table, 0, stop, self.block_size)):
            cell = self._memory[slot]
            if cell is None or cell.checksum != _extend(checksum, cell.token_id):
                raise ClobberedBlock(f"{share.request_id}, position {position}, slot {slot}: {cell}")
            checksum = cell.checksum
        return checksum

    def _draw(self, share: ScheduledRequest) -> SampledToken:
        assert share.sampling is not None
        checksum = self._context(share, share.stop)
        token_id = share.token_ids[-1] + 1
        if self.mixes:
            token_id = crc32(f"{checksum}:{share.seed}:{share.stop}".encode())
        token_id %= self.vocab_size
        ends = set(share.sampling.stop_token_ids) | (set() if share.sampling.ignore_eos else set(self.eos_token_ids))
        while share.num_output_tokens < share.sampling.min_tokens and token_id in ends:
            token_id = (token_id + 1) % self.vocab_size
        if share.sampling.logprobs is None:
            return SampledToken(share.request_id, token_id)
        return SampledToken(share.request_id, token_id, -0.5, ((token_id, -0.5),) * share.sampling.logprobs)


def _extend(checksum: int, token_id: int) -> int:
    return crc32(f"{checksum},{token_id}".encode())


# Factories for an engine process: module-level, so that they can be named across it.


def load_counting_runner(settings: EngineSettings, files: ModelFiles) -> CountingRunner:
    for module in ("fastapi", "uvicorn", "torch"):
        assert module not in sys.modules, f"the engine process imported {module}"
    return CountingRunner(num_kv_blocks=settings.num_kv_blocks or 64, block_size=settings.block_size)


def load_endless_runner(settings: EngineSettings, files: ModelFiles) -> CountingRunner:
    """No request runs out of context before its reader looks."""
    return CountingRunner(num_kv_blocks=100_000, max_model_len=400_000, vocab_size=1_000_000)


def load_nothing(settings: EngineSettings, files: ModelFiles) -> CountingRunner:
    raise ModelNotFound(f"{files.uri}: no such file")


def load_with_a_bug(settings: EngineSettings, files: ModelFiles) -> CountingRunner:
    raise ZeroDivisionError("a mistake of ours\nand its second line")
