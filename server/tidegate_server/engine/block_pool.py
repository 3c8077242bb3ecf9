"""Free and lent KV blocks: who holds a block is a count here, and every block is in exactly one state."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

NULL_BLOCK: Final = 0  # padding points to it; never lent, never counted


class OutOfBlocks(Exception):
    """More blocks were asked for than are free or cached; the caller should have looked first."""


def _ignore_reuse(block: int) -> None:
    """Stands in for a prefix cache where there is none."""


@dataclass(frozen=True, slots=True)
class PoolBooks:
    """Everything that a pool has written down of its blocks, as of one moment; an audit compares it with the owners."""

    in_service: tuple[int, ...]  # every block but those that shrinking took away
    num_live: int
    free: tuple[int, ...]
    cached: tuple[int, ...]
    pending: tuple[int, ...]  # those that a step will settle
    stuck: tuple[int, ...]  # pending too, but for ever
    num_holders: tuple[int, ...]  # by block id, the null block's included
    is_known: tuple[bool, ...]  # by block id too


class BlockPool:
    """Lends KV blocks 1 to `num_blocks`.

    A block is *free* (no content), *live* (somebody holds it), *cached* (nobody holds it, its content is known and may
    be shared again) or *pending* (nobody holds it, but a step in flight may still touch it). After every call
    `num_free + num_live + num_cached + num_pending == num_total`. Every call costs O(1) for each block it names.

    Args:
        on_reuse: told each cached block that is about to be lent for new content.
    """

    def __init__(self, num_blocks: int, on_reuse: Callable[[int], None] = _ignore_reuse) -> None:
        self._num_total = num_blocks
        self._on_reuse = on_reuse
        self._free = list(range(num_blocks, 0, -1))  # a stack: the block freed last is the warmest
        self._num_holders = [0] * (num_blocks + 1)
        self._is_known = [False] * (num_blocks + 1)
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._fence_of: dict[int, int] = {}  # pending blocks: the last step that may touch them
        self._fenced: deque[tuple[int, int]] = deque()  # (step, block) in order; stale where `_fence_of` differs
        self._out_of_service: set[int] = set()
        self._num_live = 0

    @property
    def num_total(self) -> int:
        return self._num_total

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_live(self) -> int:
        return self._num_live

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_pending(self) -> int:
        return len(self._fence_of)

    @property
    def num_available(self) -> int:
        """Blocks that `take` can give: free ones and cached ones."""
        return len(self._free) + len(self._cached)

    def is_cached(self, block: int) -> bool:
        return block in self._cached

    def num_holders(self, block: int) -> int:
        return self._num_holders[block]

    def is_known(self, block: int) -> bool:
        """Whether the block's content is complete and findable."""
        return self._is_known[block]

    def take(self, count: int) -> list[int]:
        """Lend `count` blocks for new content: free ones first, then the cached ones used least recently.

        Raises:
            OutOfBlocks: fewer are available; nothing was lent.
        """
        if count > self.num_available:
            raise OutOfBlocks(f"{count} blocks wanted, {self.num_available} available of {self._num_total}")
        taken = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in taken:
            self._num_holders[block] = 1
        self._num_live += count
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add a holder to each of these blocks, whose content is known or which somebody holds."""
        for block in blocks:
            is_shareable = self._is_known[block] or self._num_holders[block] > 0
            assert is_shareable, f"block {block} has no content to share"
            if self._num_holders[block] == 0:
                self._cached.pop(block, None)
                self._fence_of.pop(block, None)
                self._num_live += 1
            self._num_holders[block] += 1

    def mark_known(self, block: int) -> None:
        """Say that a live block's content is complete and findable, so that it is cached once nobody holds it."""
        assert self._num_holders[block] > 0, f"block {block} is not lent"
        self._is_known[block] = True

    def mark_unknown(self, block: int) -> None:
        """Say that a block's content cannot be found any more: once nobody holds it, it is free."""
        self._is_known[block] = False
        if block in self._cached:
            del self._cached[block]
            self._free.append(block)

    def release(self, blocks: Iterable[int], fence: int | None = None) -> None:
        """Take one holder off each of these blocks, in the order in which they should be used again.

        Args:
            fence: the last step in flight that may touch the blocks; None when there is none.
        """
        for block in blocks:
            assert self._num_holders[block] > 0, f"block {block} is not lent"
            self._num_holders[block] -= 1
            if self._num_holders[block] > 0:
                continue
            self._num_live -= 1
            if fence is None:
                self._settle(block)
            else:
                self._fence_of[block] = fence
                self._fenced.append((fence, block))

    def retire(self, step: int) -> None:
        """Settle the blocks that only steps up to `step` could still touch."""
        while self._fenced and self._fenced[0][0] <= step:
            fence, block = self._fenced.popleft()
            if self._fence_of.get(block) == fence:  # else it was shared meanwhile, and perhaps fenced anew
                del self._fence_of[block]
                self._settle(block)

    def shrink(self, count: int) -> int:
        """Take up to `count` available blocks out of service for good, free ones first; gives how many it were."""
        num_lost = max(0, min(count, self.num_available))
        for _ in range(num_lost):
            self._out_of_service.add(self._free.pop() if self._free else self._evict())
        self._num_total -= num_lost
        return num_lost

    # For the audit: O(blocks) for each call.

    def books(self) -> PoolBooks:
        will_settle = {block for fence, block in self._fenced if self._fence_of.get(block) == fence}
        return PoolBooks(
            in_service=tuple(sorted(set(range(1, len(self._num_holders))) - self._out_of_service)),
            num_live=self._num_live,
            free=tuple(self._free),
            cached=tuple(self._cached),
            pending=tuple(will_settle),
            stuck=tuple(self._fence_of.keys() - will_settle),
            num_holders=tuple(self._num_holders),
            is_known=tuple(self._is_known),
        )

    def rewrite(self, block: int, num_holders: int, is_known: bool) -> None:
        """Write a block's place anew, whatever the books say of it: live, or with no holder cached or free."""
        self._free = [each for each in self._free if each != block]
        self._cached.pop(block, None)
        self._fence_of.pop(block, None)
        self._num_holders[block] = num_holders
        self._is_known[block] = is_known
        if num_holders == 0:
            self._settle(block)
        self.recount_live()

    def recount_live(self) -> None:
        self._num_live = sum(count > 0 for count in self._num_holders)

    def _settle(self, block: int) -> None:
        if self._is_known[block]:
            self._cached[block] = None
        else:
            self._free.append(block)

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        self._is_known[block] = False
        self._on_reuse(block)
        return block
