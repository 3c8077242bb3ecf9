from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidegate_server.engine.block_pool import NULL_BLOCK, BlockPool, OutOfBlocks

NUM_BLOCKS = 7


class BlockPoolMachine(RuleBasedStateMachine):
    """Takes, shares, releases and retires at random, and keeps its own account of every block."""

    def __init__(self) -> None:
        super().__init__()
        self.reused: list[int] = []
        self.pool = BlockPool(NUM_BLOCKS, self.reused.append)
        self.holders: Counter[int] = Counter()
        self.known: set[int] = set()
        self.step = 0
        self.retired = 0
        self.fence: dict[int, int] = {}
        self.num_lost = 0  # out of service

    @rule(count=st.integers(0, NUM_BLOCKS + 1))
    def take(self, count: int) -> None:
        num_free, self.reused[:] = self.pool.num_free, []
        if count > self.pool.num_available:
            with pytest.raises(OutOfBlocks):
                self.pool.take(count)
            return
        taken = self.pool.take(count)
        assert len(set(taken)) == count
        for block in taken:
            assert block not in self.holders
            assert block not in self.fence
        assert NULL_BLOCK not in taken
        assert len(self.reused) == max(0, count - num_free), "free blocks go before cached ones"
        self.known -= set(self.reused)
        self.holders.update(taken)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.known)))
        self.pool.share([block])
        self.holders[block] += 1
        self.fence.pop(block, None)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def mark_known(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.holders)))
        self.pool.mark_known(block)
        self.known.add(block)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), fenced=st.booleans())
    def release(self, data: st.DataObject, fenced: bool) -> None:
        block = data.draw(st.sampled_from(sorted(self.holders)))
        self.step += 1
        self.pool.release([block], self.step if fenced else None)
        self.holders[block] -= 1
        if self.holders[block] == 0:
            del self.holders[block]
            if fenced:
                self.fence[block] = self.step

    @rule(ahead=st.integers(0, 3))
    def retire(self, ahead: int) -> None:
        self.retired = min(self.step, self.retired + ahead)
        self.pool.retire(self.retired)
        self.fence = {block: step for block, step in self.fence.items() if step > self.retired}

    @rule(count=st.integers(-1, 2))
    def shrink(self, count: int) -> None:
        self.reused[:] = []
        before = self.pool.num_available
        num_lost = self.pool.shrink(count)
        assert num_lost == max(0, min(count, before))
        self.num_lost += num_lost
        self.known -= set(self.reused)

    @invariant()
    def every_block_is_in_one_state(self) -> None:
        pool = self.pool
        assert pool.num_free + pool.num_live + pool.num_cached + pool.num_pending == pool.num_total
        assert pool.num_total == NUM_BLOCKS - self.num_lost

    @invariant()
    def the_states_are_as_accounted(self) -> None:
        assert self.pool.num_live == len(self.holders)
        assert self.pool.num_pending == len(self.fence)
        assert self.pool.num_cached == len(self.known - self.holders.keys() - self.fence.keys())
        for block in range(1, NUM_BLOCKS + 1):
            assert self.pool.num_holders(block) == self.holders[block] if block in self.holders else True


TestBlockPoolMachine = BlockPoolMachine.TestCase
TestBlockPoolMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def test_cached_blocks_are_reused_least_recently_used_first() -> None:
    reused: list[int] = []
    pool = BlockPool(3, reused.append)
    first, second, third = pool.take(3)
    for block in (first, second, third):
        pool.mark_known(block)
    pool.release([second, first, third])
    pool.share([second])
    pool.release([second])
    assert [pool.take(1) for _ in range(3)] == [[first], [third], [second]]
    assert reused == [first, third, second]


def test_a_block_that_a_step_may_touch_is_not_lent_before_the_step_is_back() -> None:
    pool = BlockPool(1)
    blocks = pool.take(1)
    pool.release(blocks, fence=3)
    with pytest.raises(OutOfBlocks):
        pool.take(1)
    pool.retire(2)
    assert pool.num_pending == 1
    pool.retire(3)
    assert pool.take(1) == blocks


def test_a_pending_block_that_is_shared_again_stays_live_when_its_step_comes_back() -> None:
    pool = BlockPool(1)
    blocks = pool.take(1)
    pool.mark_known(blocks[0])
    pool.release(blocks, fence=3)
    pool.share(blocks)
    pool.retire(3)
    assert (pool.num_live, pool.num_cached) == (1, 0)


def test_a_block_cannot_be_released_twice() -> None:
    pool = BlockPool(1)
    blocks = pool.take(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="not lent"):
        pool.release(blocks)
    assert pool.num_free == 1


def test_taking_too_many_blocks_takes_none() -> None:
    pool = BlockPool(2)
    with pytest.raises(OutOfBlocks, match="3 blocks wanted, 2 available of 2"):
        pool.take(3)
    assert pool.num_free == 2


def test_a_pool_shrinks_by_free_blocks_first_and_by_none_that_somebody_holds() -> None:
    reused: list[int] = []
    pool = BlockPool(4, reused.append)
    held, cached = pool.take(2)
    pool.mark_known(cached)
    pool.release([cached])
    assert pool.shrink(2) == 2
    assert (reused, pool.num_cached, pool.num_total) == ([], 1, 2)
    assert pool.shrink(2) == 1
    assert (reused, pool.num_live, pool.num_total) == ([cached], 1, 1)
    pool.release([held])
    assert pool.take(1) == [held]
