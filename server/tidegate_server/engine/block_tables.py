"""Fills each request's block table from the pool and the prefix cache, and empties it again."""

from collections.abc import Sequence

from tidegate_server.engine.block_pool import BlockPool
from tidegate_server.engine.prefix_cache import BlockHash, BlockHasher, PrefixCache
from tidegate_server.engine.request import Request


class BlockTables:
    """The one place where requests get and lose blocks.

    Args:
        prefix_caching: when False, nothing is looked up and nothing is remembered.
    """

    def __init__(self, num_blocks: int, block_size: int, hasher: BlockHasher, prefix_caching: bool) -> None:
        self._block_size = block_size
        self._hasher = hasher
        self._cache = PrefixCache() if prefix_caching else None
        self.pool = BlockPool(num_blocks, self._cache.forget) if self._cache is not None else BlockPool(num_blocks)

    def try_claim(self, request: Request, margin: int) -> bool:
        """Give a request all blocks of its known tokens and of the next one, prefix hits among them.

        Nothing is given unless `margin` blocks stay available. Claiming the whole prompt at once means that a prefill,
        once begun, never waits for a block.
        """
        assert not request.block_table, f"{request.request_id} holds blocks already"
        hits = self._find_hits(request)
        num_fresh = self._num_blocks(len(request.token_ids) + 1) - len(hits)
        num_revived = sum(map(self.pool.is_cached, hits))
        if num_fresh + num_revived + margin > self.pool.num_available:
            return False
        self.pool.share(hits)  # before taking, or a hit could be evicted to make room for the rest
        request.block_table = hits + self.pool.take(num_fresh)
        request.num_known_blocks = len(hits)
        request.num_computed_tokens = len(hits) * self._block_size
        return True

    def try_grow(self, request: Request) -> bool:
        """Make sure that the request's last known token has a slot; False when no block is available."""
        if len(request.block_table) * self._block_size >= len(request.token_ids):
            return True
        if self.pool.num_available == 0:
            return False
        request.block_table += self.pool.take(1)
        return True

    def give_back(self, request: Request, fence: int | None) -> None:
        """Release all blocks; `fence` is the last step in flight that may touch them."""
        # The tail first: a block is worth nothing in the cache once its parent is gone.
        self.pool.release(reversed(request.block_table), fence)
        request.block_table = []  # a new list: a batch in flight keeps the old one
        request.num_known_blocks = 0
        request.num_computed_tokens = 0

    def remember(self, request: Request) -> None:
        """Make the blocks that the request has filled findable."""
        if self._cache is None:
            return
        num_full = request.num_computed_tokens // self._block_size
        if num_full == request.num_known_blocks:
            return
        hashes = self._hashes(request, num_full)
        for index in range(request.num_known_blocks, num_full):
            if self._cache.insert(hashes[index], request.block_table[index]):
                self.pool.mark_known(request.block_table[index])
        request.num_known_blocks = num_full

    def _find_hits(self, request: Request) -> list[int]:
        if self._cache is None:
            return []
        # One token is always left to compute, since the draw needs its logits.
        num_usable = (len(request.token_ids) - 1) // self._block_size
        return self._cache.match(self._hashes(request, num_usable)[:num_usable])

    def _hashes(self, request: Request, num_blocks: int) -> Sequence[BlockHash]:
        """At least the first `num_blocks` hashes; each is computed once in a request's life."""
        hashes, size = request.block_hashes, self._block_size
        for index in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else request.cache_root
            hashes.append(self._hasher.block(parent, request.token_ids[index * size : (index + 1) * size]))
        return hashes

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
