"""Finding rows that know of each other."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tidegate_server.engine.exactness import Difference
from tidegate_server.model.row_ops import (
    FEW_ROWS,
    FIRST_POSITION,
    HEAD_ROWS,
    MANY_ROWS,
    ROWS,
    RowOp,
    as_requests,
    find_difference,
    random_rows,
)

VALUES = random_rows(MANY_ROWS, 40)


def op(compute: Callable[[Tensor], Tensor], num_rows: int = ROWS) -> RowOp:
    return RowOp("sum 40", num_rows, lambda rows: compute(VALUES[rows]))


def ascending(x: Tensor) -> Tensor:
    """Sums of rows, from the first number to the last."""
    total = torch.zeros(len(x), 1)
    for column in range(x.shape[1]):
        total += x[:, column : column + 1]
    return total


def descending(x: Tensor) -> Tensor:
    return ascending(x.flip(1))


@pytest.mark.parametrize("num_rows", [1, 2, FEW_ROWS, HEAD_ROWS, ROWS, MANY_ROWS])
def test_one_order_of_summing_shows_no_difference(num_rows: int) -> None:
    assert find_difference(op(ascending, num_rows)) is None


def test_every_row_is_computed_twice_and_one_of_them_alone() -> None:
    batches: list[list[int]] = []

    def run(rows: list[int]) -> Tensor:
        batches.append(rows)
        return VALUES[rows]

    assert find_difference(RowOp("copy", ROWS, run)) is None
    together, *windows = batches
    assert together == list(range(ROWS))
    assert [len(window) for window in windows] == [1, 2, 3, 5, 8, 17, 28]
    assert sorted(row for window in windows for row in window) == together
    # Nearly all stand at another place than among all rows.
    assert sum(place == row for window in windows for place, row in enumerate(window)) <= 2


@pytest.mark.parametrize(
    ("compute", "how"),
    [
        pytest.param(
            lambda x: ascending(x) if len(x) > 1 else descending(x),
            "a row alone against the same among 64",
            id="one row is summed in another order",
        ),
        pytest.param(
            lambda x: ascending(x) if len(x) != 5 else descending(x),
            "5 rows together against the same among 64",
            id="five rows are",
        ),
        pytest.param(
            lambda x: torch.cat((ascending(x[:60]), descending(x[60:]))),
            "28 rows together against the same among 64",
            id="the last rows of many are",
        ),
        pytest.param(
            lambda x: ascending(x) + 0.0 * x[0, 0].sign() if len(x) < 3 else ascending(x) * torch.ones(1),
            None,
            id="something that changes no number",
        ),
    ],
)
def test_another_order_for_some_numbers_of_rows_is_found(compute: Callable[[Tensor], Tensor], how: str | None) -> None:
    assert find_difference(op(compute)) == (None if how is None else Difference("sum 40", how))


def test_zeros_of_both_signs_are_other_bits() -> None:
    def zeros(x: Tensor) -> Tensor:
        return torch.zeros(len(x), 1) * (-1.0 if len(x) == 1 else 1.0)

    assert find_difference(op(zeros)) is not None


def test_not_a_number_is_the_same_bits_as_itself() -> None:
    assert find_difference(op(lambda x: torch.full((len(x), 1), torch.nan))) is None


def test_neighbouring_rows_are_a_chunk_and_the_others_decodes() -> None:
    requests = as_requests([9, 4, 0, 1, 2, 7, 8], block_size=16)
    assert requests.query_start.tolist() == [0, 1, 2, 5, 7]
    assert requests.context_len.tolist() == [FIRST_POSITION + stop for stop in (10, 5, 3, 9)]
    assert requests.block_table.shape == (4, 21)
    assert requests.block_table.min() == 1  # the null block is nobody's
