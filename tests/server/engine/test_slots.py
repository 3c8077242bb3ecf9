import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_server.engine.slots import BlockTableTooShort, slot_mapping


@given(
    table=st.lists(st.integers(1, 1000), max_size=8),
    size=st.sampled_from([1, 2, 4, 16]),
    bounds=st.tuples(st.integers(0, 200), st.integers(0, 200)),
)
def test_slots_are_what_the_definition_says_token_by_token(
    table: list[int], size: int, bounds: tuple[int, int]
) -> None:
    start, stop = sorted(bounds)
    if stop > len(table) * size:
        with pytest.raises(BlockTableTooShort):
            slot_mapping(table, start, stop, size)
        return
    assert slot_mapping(table, start, stop, size) == [table[p // size] * size + p % size for p in range(start, stop)]


def test_an_empty_range_has_no_slots() -> None:
    assert slot_mapping([], 0, 0, 16) == []


def test_the_error_names_the_first_position_without_a_block() -> None:
    with pytest.raises(BlockTableTooShort, match="2 blocks of 4 tokens end before position 8"):
        slot_mapping([5, 6], 3, 9, 4)
