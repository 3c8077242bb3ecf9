"""The plan of a step: every query meets every key that it may see exactly once, and spans in ascending order."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_kernels.attention_plan import SPAN, Tile, plan

lengths = st.lists(st.tuples(st.integers(0, 3 * SPAN), st.integers(0, 300)), min_size=1, max_size=12)


def planned(requests: list[tuple[int, int]], group: int = 3) -> tuple[Tile, ...]:
    """The plan for requests given as (tokens before, new tokens)."""
    query_start = [0]
    for _, num_new in requests:
        query_start.append(query_start[-1] + num_new)
    return plan(tuple(query_start), tuple(before + num_new for before, num_new in requests), group)


@given(lengths)
def test_every_query_is_in_one_tile(requests: list[tuple[int, int]]) -> None:
    tokens = Counter(token for tile in planned(requests) for token in tile.tokens.tolist())
    assert tokens == Counter(range(sum(num_new for _, num_new in requests)))


@given(lengths)
def test_a_request_meets_all_its_spans_in_ascending_order(requests: list[tuple[int, int]]) -> None:
    for tile in planned(requests):
        met: dict[int, list[int]] = {request: [] for request in range(len(tile.requests))}
        for step in tile.passes:
            for pairs, tile_requests in step.merges:
                spans = step.span_numbers[pairs].tolist()
                merged = range(tile_requests.start, tile_requests.stop)
                assert step.requests[pairs].tolist() == list(merged)
                for request, span in zip(merged, spans, strict=True):
                    met[request].append(span)
        for request, spans in met.items():
            assert spans == list(range(len(spans)))
            before, num_new = requests[int(tile.requests[request])]
            assert len(spans) * SPAN <= before + num_new + SPAN - 1
        assert len(met[0]) == tile.num_spans


@given(lengths)
def test_a_row_sees_the_keys_up_to_its_own_and_no_more(requests: list[tuple[int, int]]) -> None:
    group = 3
    for tile in planned(requests, group):
        seen = Counter[tuple[int, int]]()
        for step in tile.passes:
            for pair, request in enumerate(step.requests.tolist()):
                for query in {0, tile.num_queries - 1}:
                    row = query * group
                    seen[request, query] += (
                        step.num_keys if step.visible is None else int(step.visible[pair, row].sum())
                    )
        for (request, query), num_keys in seen.items():
            number = int(tile.requests[request])
            token = int(tile.tokens[request * tile.num_queries + query])
            first_token = sum(num_new for _, num_new in requests[:number])
            assert num_keys == requests[number][0] + token - first_token + 1


@pytest.mark.parametrize(
    ("num_new", "group", "expected"), [(1, 1, 12), (1, 8, 12), (4, 3, 12), (5, 3, 24), (256, 3, 768)]
)
def test_rows_leave_the_matrix_library_no_remainder(num_new: int, group: int, expected: int) -> None:
    (tile,) = planned([(40, num_new)], group=group)
    assert tile.num_rows == expected


def test_layers_share_one_plan() -> None:
    assert planned([(40, 1), (0, 7)]) is planned([(40, 1), (0, 7)])
