"""Blocks in host memory: those of swapped requests, and copies of cached blocks that had to leave the device."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tidegate_server.engine.audit import Discrepancy, audit
from tidegate_server.engine.block_pool import BlockPool
from tidegate_server.engine.prefix_cache import BlockHash, PrefixCache


class HostPool:
    """Lends host blocks 1 to `num_blocks`, and finds the cached ones among them by hash.

    What swapped requests hold stays; what is only cached makes room for them, least recently used first.
    """

    def __init__(self, num_blocks: int) -> None:
        self._cache = PrefixCache()
        self.pool = BlockPool(num_blocks, self._forget)

    def match(self, hashes: Sequence[BlockHash]) -> list[int]:
        """The host blocks of the longest known beginning of `hashes`."""
        return self._cache.match(hashes)

    def find(self, block_hash: BlockHash) -> int | None:
        return self._cache.find(block_hash)

    def name(self, block: int, block_hash: BlockHash) -> None:
        """Make a held block findable by its content."""
        if self._cache.insert(block_hash, block):
            self.pool.mark_known(block)

    def drop(self, block: int) -> None:
        """Its content is lost: nobody may find it any more. Those that hold it still do."""
        if self._cache.knows(block):
            self._cache.forget(block)
            self.pool.mark_unknown(block)

    def forget_all(self) -> None:
        """Nothing is found any more; what is held stays held."""
        for block in tuple(self._cache.blocks()):
            self.drop(block)

    def audit(self, host_tables: Iterable[Sequence[int]]) -> tuple[Discrepancy, ...]:
        """Recount every host block."""
        found = audit(self.pool, self._cache, host_tables)
        return tuple(replace(each, detail=f"host memory: {each.detail}") for each in found)

    def _forget(self, block: int) -> None:
        self._cache.forget(block)
