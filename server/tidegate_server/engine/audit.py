"""Recounts KV blocks: compares the pool's books with the block tables of all requests, and puts the books right.

Nothing here is expected to find anything. It is the last line of defence: a block that leaked would be missing until
the pod restarts, and one that is lent twice would give somebody another request's text.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from tidegate_server.engine.block_pool import BlockPool, PoolBooks
from tidegate_server.engine.prefix_cache import PrefixCache


class DiscrepancyKind(StrEnum):
    """What does not agree."""

    HOLDERS = "holders"  # the pool counts other holders of a block than there are
    PLACE = "place"  # a block is in no list, in several, or in one that its holders rule out
    ENTRY = "entry"  # the prefix cache and the pool disagree if a block's content is known
    LIVE_COUNT = "live_count"  # the number of live blocks is not that of blocks with holders
    TABLE = "table"  # a request's table names a block that does not exist, or one block twice


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """One thing that is wrong, and what is needed to put it right."""

    kind: DiscrepancyKind
    detail: str  # for the log
    block: int | None = None
    num_owners: int = 0  # tables that name the block

    @property
    def is_repairable(self) -> bool:
        """A wrong block table is the request's own: no book says which block its tokens are in."""
        return self.kind is not DiscrepancyKind.TABLE


def audit(pool: BlockPool, cache: PrefixCache | None, block_tables: Iterable[Sequence[int]]) -> tuple[Discrepancy, ...]:
    """Find what is wrong and repair what can be; gives all that was found."""
    findable = cache.blocks() if cache is not None else frozenset()
    found = find_discrepancies(pool.books(), findable, block_tables)
    repair(found, pool, cache)
    return found


def find_discrepancies(
    books: PoolBooks, findable: AbstractSet[int], block_tables: Iterable[Sequence[int]]
) -> tuple[Discrepancy, ...]:
    """Compare the books with the block tables of all requests; at most one discrepancy for each block.

    Args:
        findable: blocks that the prefix cache has an entry for.
    """
    tables = tuple(block_tables)
    num_owners = Counter(block for table in tables for block in set(table))
    known = {block for block in books.in_service if books.is_known[block]}
    num_lists = Counter((*books.free, *books.cached, *books.pending))

    # Sets rather than a look at each block: a pool of 50,000 is recounted in some hundredths of a second.
    miscounted = {block for block in books.in_service if books.num_holders[block] != num_owners.get(block, 0)}
    misknown = (known ^ findable) - miscounted
    misplaced = {block for block in books.in_service if num_lists.get(block, 0) != (block not in num_owners)}
    misplaced |= known.intersection(books.free) | (set(books.cached) - known) | set(books.stuck)
    misplaced -= misknown | miscounted

    found = [*_wrong_tables(books, tables)]
    for block in sorted(miscounted):
        detail = f"{books.num_holders[block]} holders are counted, {num_owners[block]} requests hold it"
        found.append(Discrepancy(DiscrepancyKind.HOLDERS, detail, block, num_owners[block]))
    for block in sorted(misknown):
        detail = "its content is known, but not findable" if block in known else "it can be found, but not its content"
        found.append(Discrepancy(DiscrepancyKind.ENTRY, detail, block, num_owners[block]))
    for block in sorted(misplaced):
        content = "known" if block in known else "not known"
        where = _lists(books, block)
        detail = f"it is listed as {where}; {num_owners[block]} requests hold it, and its content is {content}"
        found.append(Discrepancy(DiscrepancyKind.PLACE, detail, block, num_owners[block]))
    num_live = sum(count > 0 for count in books.num_holders)
    if books.num_live != num_live:
        detail = f"{books.num_live} blocks are counted as live, {num_live} have holders"
        found.append(Discrepancy(DiscrepancyKind.LIVE_COUNT, detail))
    return tuple(found)


def repair(found: Iterable[Discrepancy], pool: BlockPool, cache: PrefixCache | None) -> None:
    """Believe the block tables, and write the pool's books anew where they differ.

    A block that nobody holds goes back to the pool. Content counts as known only where pool and prefix cache agree:
    computing tokens again costs little, a wrong hit would give wrong ones.
    """
    for each in found:
        if not each.is_repairable:
            continue
        if each.block is None:
            pool.recount_live()
            continue
        is_known = False
        if cache is not None and each.block in cache.blocks():
            is_known = pool.is_known(each.block)
            if not is_known:
                cache.forget(each.block)
        pool.rewrite(each.block, each.num_owners, is_known)


def _lists(books: PoolBooks, block: int) -> str:
    """Every list that names the block, as often as it does."""
    lists = {"free": books.free, "cached": books.cached, "pending": books.pending, "stuck": books.stuck}
    return ", ".join(name for name, blocks in lists.items() for each in blocks if each == block) or "nothing"


def _wrong_tables(books: PoolBooks, tables: Sequence[Sequence[int]]) -> Iterator[Discrepancy]:
    in_service = frozenset(books.in_service)
    for table in tables:
        for block, count in Counter(table).items():
            if block not in in_service:
                yield Discrepancy(DiscrepancyKind.TABLE, "a request's table names it, and it does not exist", block)
            elif count > 1:
                yield Discrepancy(DiscrepancyKind.TABLE, f"it is {count} times in one request's table", block)
