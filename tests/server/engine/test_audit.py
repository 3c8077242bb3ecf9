"""The audit of blocks: silent when all is well, and able to put right every book that was damaged on purpose."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant

from tests.server.engine.counting_runner import CountingRunner
from tests.server.engine.driving import Driver, add_request
from tests.server.engine.test_scheduler_machine import SchedulerMachine
from tidegate_server.engine.audit import DiscrepancyKind, audit
from tidegate_server.engine.block_pool import NULL_BLOCK, BlockPool
from tidegate_server.engine.heartbeat import HeartbeatPage
from tidegate_server.engine.loop import AUDIT_EVERY_IDLE_TICKS, serve
from tidegate_server.engine.messages import AuditBlocks, Command, EngineMessage, Shutdown
from tidegate_server.engine.prefix_cache import BlockHash, PrefixCache
from tidegate_server.settings import SchedulerKind

NUM_BLOCKS = 8


def hash_of(block: int) -> BlockHash:
    return BlockHash(bytes([block]))


def forgetting(cache: PrefixCache) -> Callable[[int], None]:
    """What a pool does with the entries of blocks that it lends anew."""

    def forget(block: int) -> None:
        cache.forget(block)

    return forget


class Books:
    """A pool with a block in every state: 1 to 4 are live, 1 shared by both requests, 5 is cached, 6 pending."""

    def __init__(self) -> None:
        self.cache = PrefixCache()
        self.pool = BlockPool(NUM_BLOCKS, forgetting(self.cache))
        first = self.pool.take(3)
        self.know(1)
        self.pool.share([1])
        self.tables = [first, [1, *self.pool.take(1)]]
        cached, pending = self.pool.take(2)
        self.know(cached)
        self.pool.release([cached])
        self.pool.release([pending], fence=9)

    def know(self, block: int) -> None:
        self.cache.insert(hash_of(block), block)
        self.pool.mark_known(block)

    def audit(self) -> list[tuple[DiscrepancyKind, int | None]]:
        return [(each.kind, each.block) for each in audit(self.pool, self.cache, self.tables)]

    @property
    def states(self) -> tuple[int, int, int, int]:
        return (self.pool.num_free, self.pool.num_live, self.pool.num_cached, self.pool.num_pending)


HEALTHY = (2, 4, 1, 1)


def test_a_sound_pool_has_no_discrepancy() -> None:
    books = Books()
    assert books.audit() == []
    assert books.states == HEALTHY


def test_blocks_that_were_taken_out_of_service_are_not_missed() -> None:
    books = Books()
    books.pool.shrink(1)
    assert books.audit() == []
    assert books.pool.num_total == NUM_BLOCKS - 1


def leak(books: Books) -> None:
    books.pool.take(1)


def leak_known_content(books: Books) -> None:
    books.pool.share([5])


def forget_a_holder(books: Books) -> None:
    books.pool.release([1])


def forget_the_only_holder(books: Books) -> None:
    books.pool.release([4])


def count_a_holder_twice(books: Books) -> None:
    books.pool.share([1])


def list_a_live_block_as_free(books: Books) -> None:
    books.pool._free.append(2)


def lose_a_free_block(books: Books) -> None:
    books.pool._free.remove(7)


def list_a_free_block_twice(books: Books) -> None:
    books.pool._free.append(7)


def lose_the_step_that_a_block_waits_for(books: Books) -> None:
    books.pool._fenced.clear()


def forget_the_entry_of_a_cached_block(books: Books) -> None:
    books.cache.forget(5)


def forget_the_entry_of_a_live_block(books: Books) -> None:
    books.cache.forget(1)


def keep_the_entry_of_a_free_block(books: Books) -> None:
    books.cache.insert(hash_of(8), 8)


def list_a_cached_block_as_free(books: Books) -> None:
    books.pool._cached.clear()
    books.pool._free.append(5)


def list_a_free_block_as_cached(books: Books) -> None:
    books.pool._free.remove(7)
    books.pool._cached[7] = None


def miscount_the_live_blocks(books: Books) -> None:
    books.pool._num_live += 1


@pytest.mark.parametrize(
    ("damage", "kind", "block", "states"),
    [
        (leak, DiscrepancyKind.HOLDERS, 7, HEALTHY),
        (leak_known_content, DiscrepancyKind.HOLDERS, 5, HEALTHY),
        (forget_a_holder, DiscrepancyKind.HOLDERS, 1, HEALTHY),
        (forget_the_only_holder, DiscrepancyKind.HOLDERS, 4, HEALTHY),
        (count_a_holder_twice, DiscrepancyKind.HOLDERS, 1, HEALTHY),
        (list_a_live_block_as_free, DiscrepancyKind.PLACE, 2, HEALTHY),
        (lose_a_free_block, DiscrepancyKind.PLACE, 7, HEALTHY),
        (list_a_free_block_twice, DiscrepancyKind.PLACE, 7, HEALTHY),
        (lose_the_step_that_a_block_waits_for, DiscrepancyKind.PLACE, 6, (3, 4, 1, 0)),
        (forget_the_entry_of_a_cached_block, DiscrepancyKind.ENTRY, 5, (3, 4, 0, 1)),
        (forget_the_entry_of_a_live_block, DiscrepancyKind.ENTRY, 1, HEALTHY),
        (keep_the_entry_of_a_free_block, DiscrepancyKind.ENTRY, 8, HEALTHY),
        (list_a_cached_block_as_free, DiscrepancyKind.PLACE, 5, HEALTHY),
        (list_a_free_block_as_cached, DiscrepancyKind.PLACE, 7, HEALTHY),
        (miscount_the_live_blocks, DiscrepancyKind.LIVE_COUNT, None, HEALTHY),
    ],
)
def test_what_is_wrong_is_found_and_put_right(
    damage: Callable[[Books], None], kind: DiscrepancyKind, block: int | None, states: tuple[int, int, int, int]
) -> None:
    books = Books()
    damage(books)
    assert books.audit() == [(kind, block)]
    assert books.audit() == []
    assert books.states == states
    assert [books.pool.num_holders(each) for each in (1, 2, 3, 4)] == [2, 1, 1, 1]


def test_an_entry_is_dropped_where_the_content_is_not_known() -> None:
    books = Books()
    keep_the_entry_of_a_free_block(books)
    assert books.cache.match([hash_of(8)]) == [8]
    books.audit()
    assert books.cache.match([hash_of(8)]) == []
    assert books.cache.match([hash_of(5)]) == [5]


@pytest.mark.parametrize("table", [[NULL_BLOCK], [NUM_BLOCKS + 1]])
def test_a_table_that_names_no_block_is_told_and_left(table: list[int]) -> None:
    books = Books()
    books.tables.append(table)
    for _ in range(2):
        assert books.audit() == [(DiscrepancyKind.TABLE, table[0])]


def test_a_table_that_names_a_block_twice_is_told_and_left() -> None:
    books = Books()
    books.tables[0].append(2)
    for _ in range(2):
        assert books.audit() == [(DiscrepancyKind.TABLE, 2)]


block_ids = st.integers(1, NUM_BLOCKS)


@given(
    free=st.lists(block_ids),
    cached=st.lists(block_ids),
    pending=st.lists(st.tuples(block_ids, st.booleans())),
    num_holders=st.lists(st.integers(0, 3), min_size=NUM_BLOCKS, max_size=NUM_BLOCKS),
    is_known=st.lists(st.booleans(), min_size=NUM_BLOCKS, max_size=NUM_BLOCKS),
    num_live=st.integers(0, NUM_BLOCKS),
    entries=st.sets(block_ids),
    tables=st.lists(st.lists(block_ids, unique=True), max_size=3),
)
@settings(deadline=None)
def test_however_the_books_are_damaged_one_audit_puts_them_right(
    free: list[int],
    cached: list[int],
    pending: list[tuple[int, bool]],
    num_holders: list[int],
    is_known: list[bool],
    num_live: int,
    entries: set[int],
    tables: list[list[int]],
) -> None:
    cache = PrefixCache()
    pool = BlockPool(NUM_BLOCKS, forgetting(cache))
    for block in entries:
        cache.insert(hash_of(block), block)
    pool._free = free
    pool._cached.update(dict.fromkeys(cached))
    for block, is_queued in pending:
        pool._fence_of[block] = 1
        if is_queued:
            pool._fenced.append((1, block))
    pool._num_holders[1:] = num_holders
    pool._is_known[1:] = is_known
    pool._num_live = num_live
    audit(pool, cache, tables)
    assert audit(pool, cache, tables) == ()
    assert pool.num_free + pool.num_live + pool.num_cached + pool.num_pending == NUM_BLOCKS
    held = {block for table in tables for block in table}
    assert pool.num_live == len(held)
    pool.retire(1)
    assert set(pool.take(pool.num_available)) == set(range(1, NUM_BLOCKS + 1)) - held


class AuditedSchedulerMachine(SchedulerMachine):
    """The scheduler's own machine, audited after every move."""

    @invariant()
    def no_audit_finds_anything(self) -> None:
        if hasattr(self, "scheduler"):
            assert self.scheduler.audit() == ()


TestAuditedSchedulerMachine = AuditedSchedulerMachine.TestCase
TestAuditedSchedulerMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


# The engine runs it.


@pytest.mark.parametrize("kind", SchedulerKind)
def test_repairs_are_counted_and_running_requests_go_on(kind: SchedulerKind) -> None:
    driver = Driver(scheduler=kind)
    driver.add(add_request("a", range(6), max_tokens=4))
    driver.step()
    driver.engine.scheduler.pool.take(2)
    assert len(driver.engine.audit()) == 2
    assert driver.engine.snapshot().num_audit_repairs == 2
    driver.run()
    assert driver.tokens("a") == [6, 7, 8, 9]
    assert driver.engine.scheduler.pool.num_live == 0
    assert driver.engine.audit() == ()


def test_host_blocks_are_recounted_too() -> None:
    driver = Driver(CountingRunner(num_host_blocks=8))
    host = driver.engine.scheduler.host
    assert host is not None
    host.pool.take(1)
    (found,) = driver.engine.audit()
    assert found.detail == "host memory: 1 holders are counted, 0 requests hold it"
    assert host.pool.num_free == 8


class ScriptedChannel:
    """Gives one list of commands at each look, and then the end; nobody waits."""

    def __init__(self, *looks: list[Command]) -> None:
        self._looks: Iterator[list[Command]] = iter([*looks, [Shutdown()]])

    def receive(self, timeout_s: float) -> list[Command]:
        return next(self._looks)

    def send(self, message: EngineMessage) -> None:
        pass


def repairs_after(*looks: list[Command]) -> int:
    """How many blocks an engine with one that leaked has repaired after these looks."""
    engine = Driver().engine
    engine.scheduler.pool.take(1)
    page = HeartbeatPage.create()
    serve(engine, ScriptedChannel(*looks), page)
    return page.read().num_audit_repairs


def test_an_idle_engine_audits_now_and_then() -> None:
    ticks: list[list[Command]] = [[] for _ in range(AUDIT_EVERY_IDLE_TICKS)]
    assert repairs_after(*ticks[1:]) == 0
    assert repairs_after(*ticks) == 1


def test_an_audit_can_be_asked_for() -> None:
    assert repairs_after([AuditBlocks()]) == 1
