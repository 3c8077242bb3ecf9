"""Fills each request's block table from the pool, the prefix cache and host memory, and empties it again."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate_server.engine.audit import Discrepancy, audit
from tidegate_server.engine.batch import BlockCopies
from tidegate_server.engine.block_copies import PendingCopies
from tidegate_server.engine.block_pool import BlockPool
from tidegate_server.engine.host_pool import HostPool
from tidegate_server.engine.preemption import OwnBlocks
from tidegate_server.engine.prefix_cache import BlockHash, BlockHasher, PrefixCache
from tidegate_server.engine.request import Request


@dataclass(frozen=True, slots=True)
class Claim:
    """What a request found when it got its blocks, in tokens."""

    num_on_device: int
    num_on_host: int


@dataclass(frozen=True, slots=True)
class LostBlocks:
    """Blocks without the content that they should have, because a copy failed."""

    device: frozenset[int]
    host: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Found:
    """Where the first blocks of a table come from, in the order of their positions."""

    kept: list[int]  # held already
    shared: list[int]  # on the device, known by their content
    on_host: list[int]
    copied: int | None  # held already, but others hold it too and it is to be written to
    num_tokens: int  # whose KV all these hold

    @property
    def num_in_place(self) -> int:
        return len(self.kept) + len(self.shared)


@dataclass(frozen=True, slots=True)
class _OwnBlocks:
    """Satisfies `preemption.OwnBlocks`. Looked up when asked: tables are long, and mostly their ends matter."""

    table: Sequence[int]
    pool: BlockPool

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, position: int, /) -> bool:
        return self.pool.num_holders(self.table[position]) == 1


class BlockTables:
    """The one place where requests get and lose blocks, on the device and on the host.

    Args:
        prefix_caching: when False, nothing is looked up and nothing is remembered.
        num_host_blocks: 0: there is no host memory for blocks.
    """

    def __init__(
        self, num_blocks: int, block_size: int, hasher: BlockHasher, prefix_caching: bool, num_host_blocks: int = 0
    ) -> None:
        self._block_size = block_size
        self._hasher = hasher
        self._cache = PrefixCache() if prefix_caching else None
        self._copies = PendingCopies()
        self.pool = BlockPool(num_blocks, self._on_reuse)
        self.host = HostPool(num_host_blocks) if num_host_blocks else None

    def num_missing(self, request: Request, num_tokens: int, margin: int) -> int:
        """Blocks that would have to become available before `try_claim`; 0 or less: it will succeed."""
        return self._num_missing(self._find(request), num_tokens, margin)

    def try_claim(self, request: Request, num_tokens: int, margin: int, step: int) -> Claim | None:
        """Give a queued request the blocks of `num_tokens` tokens; None when they do not fit.

        What it kept, what others computed and what lies in host memory is used again. Nothing is given unless `margin`
        blocks stay available. Claiming the whole prompt at once means that a prefill, once begun, never waits.

        Args:
            step: the one that will make the copies.
        """
        found = self._find(request)
        if self._num_missing(found, num_tokens, margin) > 0:
            return None
        # Before taking, or a hit could be evicted to make room for the rest.
        self.pool.share(found.shared)
        self._hold_on_host(found.on_host, step)
        fresh = self.pool.take(self._num_blocks(num_tokens) - found.num_in_place)
        for source, target in zip(found.on_host, fresh, strict=False):
            self._copies.swap_in(source, target)
        if found.copied is not None:
            self._copies.within(found.copied, fresh[0])
            self.pool.release([found.copied])
        num_kept_tokens = request.num_computed_tokens
        request.block_table = found.kept + found.shared + fresh
        request.num_known_blocks = len(found.kept) + len(found.shared) if found.shared else request.num_known_blocks
        request.num_computed_tokens = found.num_tokens
        self._release_host(request, step)
        self.remember(request)  # what comes from the host can be shared from this step on
        num_in_place = max(num_kept_tokens, min(found.num_tokens, found.num_in_place * self._block_size))
        return Claim(num_in_place, found.num_tokens - num_in_place)

    def try_grow(self, request: Request) -> bool:
        """Make sure that the request's last known token has a slot of its own; False when no block is available."""
        index = (len(request.token_ids) - 1) // self._block_size
        is_there = index < len(request.block_table)
        if is_there and self.pool.num_holders(request.block_table[index]) == 1:
            return True
        if self.pool.num_available == 0:
            return False
        (block,) = self.pool.take(1)
        if is_there:
            # Copy on write: whoever else holds the block goes on reading it.
            shared = request.block_table[index]
            self._copies.within(shared, block)
            self.pool.release([shared])
            request.block_table = [*request.block_table[:index], block, *request.block_table[index + 1 :]]
        else:
            request.block_table.append(block)
        return True

    def fork(self, leader: Request, follower: Request) -> None:
        """Let a follower hold the blocks of the prompt that its leader has computed, all but its last token."""
        num_tokens = follower.num_prompt_tokens - 1
        num_full = num_tokens // self._block_size
        follower.block_table = leader.block_table[: self._num_blocks(num_tokens)]
        self.pool.share(follower.block_table)
        follower.num_known_blocks = min(num_full, leader.num_known_blocks)
        follower.num_computed_tokens = num_tokens

    def give_back(self, request: Request, fence: int | None) -> None:
        """Release all blocks; `fence` is the last step in flight that may touch those on the device."""
        self.trim(request, 0, fence)
        self._release_host(request, None)

    def trim(self, request: Request, num_kept: int, fence: int | None) -> None:
        """Release all but the first `num_kept` blocks on the device."""
        # The tail first: a block is worth nothing in the cache once its parent is gone.
        self.pool.release(reversed(request.block_table[num_kept:]), fence)
        request.block_table = request.block_table[:num_kept]  # a new list: a batch in flight keeps the old one
        request.num_known_blocks = min(request.num_known_blocks, num_kept)
        request.num_computed_tokens = min(request.num_computed_tokens, num_kept * self._block_size)

    def swap_out(self, request: Request, fence: int | None) -> None:
        """Move a request's computed blocks to host memory, as `num_host_blocks_for` said there is room for."""
        assert self.host is not None
        num_computed, num_full = request.num_computed_tokens, request.num_computed_tokens // self._block_size
        hashes = self._hashes(request, num_full)[:num_full] if self._cache is not None else ()
        host_table: list[int] = []
        for index, block in enumerate(request.block_table[: self._num_blocks(num_computed)]):
            known = self.host.find(hashes[index]) if index < len(hashes) else None
            if known is not None:
                self.host.pool.share([known])
                host_table.append(known)
                continue
            (host_block,) = self.host.pool.take(1)
            if index < len(hashes):
                self.host.name(host_block, hashes[index])
            self._copies.swap_out(block, host_block)
            host_table.append(host_block)
        self.trim(request, 0, fence)
        request.host_table, request.num_swapped_tokens = host_table, num_computed

    def num_host_blocks_for(self, request: Request) -> int | None:
        """Host blocks that swapping the request out takes at most; None when there is no room for it."""
        num_blocks = self._num_blocks(request.num_computed_tokens)
        if self.host is None or num_blocks == 0 or num_blocks > self.host.pool.num_available:
            return None
        return num_blocks

    def own_blocks(self, request: Request) -> OwnBlocks:
        """As of now: to be asked before anybody's blocks change."""
        return _OwnBlocks(request.block_table, self.pool)

    def num_gained(self, request: Request, others: Iterable[Request]) -> int:
        """By how much `num_missing` of a queued request would fall if all of these others released their blocks."""
        num_holders = Counter(block for other in others for block in other.block_table)
        num_released = sum(self.pool.num_holders(block) == count for block, count in num_holders.items())
        copied = self._find(request).copied
        # Held by nobody else any more, it need not be copied.
        is_spared = copied is not None and self.pool.num_holders(copied) == num_holders[copied] + 1
        return num_released + is_spared

    def remember(self, request: Request) -> None:
        """Make the blocks that the request has filled findable."""
        if self._cache is None:
            return
        num_full = request.num_computed_tokens // self._block_size
        if num_full <= request.num_known_blocks:
            return
        hashes = self._hashes(request, num_full)
        for index in range(request.num_known_blocks, num_full):
            block = request.block_table[index]
            if not self._cache.knows(block) and self._cache.insert(hashes[index], block):
                self.pool.mark_known(block)
        request.num_known_blocks = num_full

    def take_copies(self) -> BlockCopies:
        """The copies that the batch under way has to make first."""
        return self._copies.take()

    def retire(self, step: int) -> None:
        """Settle the blocks that only steps up to `step` could still touch."""
        self.pool.retire(step)
        if self.host is not None:
            self.host.pool.retire(step)

    def lose(self, copies: BlockCopies, failed: BlockCopies) -> LostBlocks:
        """Make sure that nobody finds what failed copies should have brought.

        Args:
            copies: all of the batch; one that reads what a failed one should have written fails with it.
        """
        host = frozenset(copy.target for copy in failed.swap_out)
        device = {copy.target for copy in (*failed.swap_in, *failed.within)}
        device.update(copy.target for copy in copies.swap_in if copy.source in host)
        # What could not be read once is computed, and not tried again for ever.
        host |= {copy.source for copy in failed.swap_in}
        for block in host:
            assert self.host is not None
            self.host.drop(block)
        for block in device:
            if self._cache is not None and self._cache.knows(block):
                self._cache.forget(block)
                self.pool.mark_unknown(block)
        return LostBlocks(frozenset(device), host)

    def forget_all(self) -> None:
        """Empty the prefix cache, on the device and on the host; blocks that are held stay held."""
        for block in tuple(self._cache.blocks()) if self._cache is not None else ():
            assert self._cache is not None
            self._cache.forget(block)
            self.pool.mark_unknown(block)
        if self.host is not None:
            self.host.forget_all()

    def audit(self, requests: Iterable[Request]) -> tuple[Discrepancy, ...]:
        """Recount every block; `requests` are all that may hold some."""
        holders = tuple(requests)
        found = audit(self.pool, self._cache, (request.block_table for request in holders))
        if self.host is not None:
            found += self.host.audit(request.host_table for request in holders)
        return found

    def _find(self, request: Request) -> _Found:
        """What a queued request need not compute; one token is always left, since the draw needs its logits."""
        size, num_kept_tokens = self._block_size, request.num_computed_tokens
        kept = request.block_table
        if num_kept_tokens < len(kept) * size:  # its last block is partly filled, so nothing known can follow
            is_shared = self.pool.num_holders(kept[num_kept_tokens // size]) > 1
            return (
                _Found(kept[:-1], [], [], kept[-1], num_kept_tokens)
                if is_shared
                else _Found(kept, [], [], None, num_kept_tokens)
            )
        num_usable = (len(request.token_ids) - 1) // size
        hashes = self._hashes(request, num_usable)[:num_usable] if self._cache is not None else ()
        shared = self._cache.match(hashes[len(kept) :]) if self._cache is not None else []
        num_found = len(kept) + len(shared)
        if num_found < len(request.host_table):
            return _Found(kept, shared, request.host_table[num_found:], None, request.num_swapped_tokens)
        on_host = self.host.match(hashes[num_found:]) if self.host is not None else []
        return _Found(kept, shared, on_host, None, (num_found + len(on_host)) * size)

    def _num_missing(self, found: _Found, num_tokens: int, margin: int) -> int:
        num_fresh = self._num_blocks(num_tokens) - found.num_in_place
        num_revived = sum(map(self.pool.is_cached, found.shared))
        return num_fresh + num_revived + margin - self.pool.num_available

    def _hold_on_host(self, blocks: Sequence[int], step: int) -> None:
        """Keep host blocks as they are until `step` has read them."""
        if self.host is not None and blocks:
            self.host.pool.share(blocks)
            self.host.pool.release(blocks, step)

    def _release_host(self, request: Request, fence: int | None) -> None:
        if self.host is not None and request.host_table:
            self.host.pool.release(reversed(request.host_table), fence)
        request.host_table, request.num_swapped_tokens = [], 0

    def _on_reuse(self, block: int) -> None:
        """A cached block is about to hold something else: what it held goes to host memory, if there is room."""
        assert self._cache is not None
        block_hash = self._cache.forget(block)
        if self.host is None:
            return
        known = self.host.find(block_hash)
        if known is not None:
            if not self.host.pool.is_cached(known):
                return  # held, or about to be read by a step: it stays as it is
            self.host.pool.share([known])  # and released: used just now
        elif self.host.pool.num_available > 0:
            (known,) = self.host.pool.take(1)
            self.host.name(known, block_hash)
            self._copies.swap_out(block, known)
        else:
            return
        self.host.pool.release([known])

    def _hashes(self, request: Request, num_blocks: int) -> Sequence[BlockHash]:
        """At least the first `num_blocks` hashes; each is computed once in a request's life."""
        hashes, size = request.block_hashes, self._block_size
        for index in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else request.cache_root
            hashes.append(self._hasher.block(parent, request.token_ids[index * size : (index + 1) * size]))
        return hashes

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
