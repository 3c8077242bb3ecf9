from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidegate_server.engine.prefix_cache import BlockHash, BlockHasher, PrefixCache, PrefixRoot

HASHER = BlockHasher(b"a key")
ROOT = HASHER.root(PrefixRoot("rev", "float32"))


def chain(blocks: Sequence[Sequence[int]], hasher: BlockHasher = HASHER, root: BlockHash = ROOT) -> list[BlockHash]:
    hashes: list[BlockHash] = []
    for block in blocks:
        hashes.append(hasher.block(hashes[-1] if hashes else root, block))
    return hashes


def test_a_hash_has_128_bits() -> None:
    assert len(ROOT) == len(chain([[1, 2]])[0]) == 16


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(PrefixRoot("ab", "c"), PrefixRoot("a", "bc"), id="the parts are kept apart by their lengths"),
        pytest.param(PrefixRoot("r", "d", None), PrefixRoot("r", "d", ""), id="no adapter is not an empty name"),
        pytest.param(PrefixRoot("r", "d", salt="a"), PrefixRoot("r", "d", adapter="a"), id="a salt is no adapter"),
        pytest.param(PrefixRoot("r", "d", salt="a"), PrefixRoot("r", "d", salt="b"), id="tenants share nothing"),
        pytest.param(PrefixRoot("r", "bf16"), PrefixRoot("r", "fp8"), id="dtypes share nothing"),
        pytest.param(PrefixRoot("r1", "d"), PrefixRoot("r2", "d"), id="revisions share nothing"),
    ],
)
def test_whatever_changes_the_numbers_changes_the_root(one: PrefixRoot, other: PrefixRoot) -> None:
    assert HASHER.root(one) != HASHER.root(other)


def test_without_the_key_nobody_computes_our_hashes() -> None:
    assert BlockHasher(b"another").root(PrefixRoot("rev", "float32")) != ROOT


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5))
def test_a_block_is_named_by_everything_before_it(blocks: list[tuple[int, int]]) -> None:
    changed = [(9, 9), *blocks[1:]]
    assert all(one != other for one, other in zip(chain(blocks), chain(changed), strict=True))
    assert chain(blocks) == chain([list(block) for block in blocks])


class PrefixCacheMachine(RuleBasedStateMachine):
    """Against a cache that compares tokens instead of hashes."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache()
        self.block_of: dict[tuple[tuple[int, ...], ...], int] = {}
        self.unused = list(range(1, 30))

    prompts = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=4)

    @precondition(lambda self: self.unused)
    @rule(prompt=prompts)
    def insert(self, prompt: list[tuple[int, ...]]) -> None:
        block = self.unused[-1]
        is_new = tuple(prompt) not in self.block_of
        assert self.cache.insert(chain(prompt)[-1], block) == is_new
        if is_new:
            self.block_of[tuple(prompt)] = self.unused.pop()

    @precondition(lambda self: self.block_of)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        prompt = data.draw(st.sampled_from(sorted(self.block_of)))
        block = self.block_of.pop(prompt)
        self.cache.forget(block)
        self.unused.append(block)

    @rule(prompt=prompts)
    def match(self, prompt: list[tuple[int, ...]]) -> None:
        expected: list[int] = []
        for stop in range(1, len(prompt) + 1):
            if tuple(prompt[:stop]) not in self.block_of:
                break
            expected.append(self.block_of[tuple(prompt[:stop])])
        assert self.cache.match(chain(prompt)) == expected

    @invariant()
    def it_holds_what_was_inserted_and_not_forgotten(self) -> None:
        assert len(self.cache) == len(self.block_of)


TestPrefixCacheMachine = PrefixCacheMachine.TestCase
TestPrefixCacheMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
