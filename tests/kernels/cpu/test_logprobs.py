"""Log-probabilities in C: those of a softmax, the best in order, and the same bits in any company."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.kernels.cpu.test_draw import in_nan
from tests.kernels.tolerances import assert_agrees
from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.structs import TgLogprobs, TgLogprobsRow

UNTOUCHED = -7


@dataclass(frozen=True)
class Found:
    """What the library wrote, into memory that held NaN and `UNTOUCHED`."""

    logprobs: Tensor  # [rows]
    top_ids: Tensor  # [rows, most + 1]
    top_logprobs: Tensor  # [rows, most + 1]


def logprobs(library: Library, rows: Sequence[Tensor], token_ids: Sequence[int], num_top: Sequence[int]) -> Found:
    stride = max(num_top, default=0) + 1
    found = Found(
        logprobs=torch.full((len(rows),), torch.nan),
        top_ids=torch.full((len(rows), stride), UNTOUCHED),
        top_logprobs=torch.full((len(rows), stride), torch.nan),
    )
    structs = [
        TgLogprobsRow(x=row.data_ptr(), token_id=token_id, num_top=num, maximum=float(row.max()))
        for row, token_id, num in zip(rows, token_ids, num_top, strict=True)
    ]
    library.run_logprobs(
        TgLogprobs(
            rows=(TgLogprobsRow * len(structs))(*structs),
            logprobs=found.logprobs.data_ptr(),
            top_ids=found.top_ids.data_ptr(),
            top_logprobs=found.top_logprobs.data_ptr(),
            m=len(structs),
            n=len(rows[0]) if rows else 0,
            top_stride=stride,
        )
    )
    return found


def assert_are_those_of_a_softmax(library: Library, row: Tensor, token_id: int, num_top: int) -> None:
    found = logprobs(library, [row], [token_id], [num_top])
    expected = row.double().log_softmax(dim=-1).float()
    order = sorted(range(len(row)), key=lambda i: (-float(row[i]), i))[:num_top]
    assert_agrees(found.logprobs, expected[[token_id]])
    assert found.top_ids[0].tolist() == [*order, UNTOUCHED]
    assert_agrees(found.top_logprobs[0, :num_top], expected[order])
    assert bool(found.top_logprobs[0, num_top:].isnan().all())
    assert float(found.logprobs.max()) <= 0.0


# Sizes 1, odd, one off a vector (16) and off a run that is summed in fp32 (256).
@pytest.mark.parametrize("size", [1, 15, 16, 17, 33, 255, 256, 257, 3001])
@pytest.mark.parametrize("num_top", [0, 1, 5, 20, 3001])
def test_rows_of_every_size_have_a_softmaxs_logprobs(library: Library, size: int, num_top: int) -> None:
    row = in_nan(torch.randn(size, generator=torch.Generator().manual_seed(size)) * 4)
    assert_are_those_of_a_softmax(library, row, token_id=size // 2, num_top=min(num_top, size))


@pytest.mark.parametrize(
    "row",
    [
        torch.arange(900) * 0.05,
        torch.arange(900) * -0.05,
        torch.full((900,), 1e6),
        torch.arange(900) % 3 * 1.0,
        torch.where(torch.arange(900) % 400 == 399, 2.5, -torch.inf),
        torch.where(torch.arange(900) == 30, 300.0, 0.0),
        torch.where(torch.arange(900) < 500, -0.0, 0.0),
    ],
    ids=["rising", "falling", "equal", "ties", "nearly all forbidden", "one far above", "noughts"],
)
def test_rows_of_every_look_have_a_softmaxs_logprobs(library: Library, row: Tensor) -> None:
    for token_id, num_top in ((30, 7), (399, 1), (0, 300)):
        assert_are_those_of_a_softmax(library, in_nan(row), token_id, num_top)


def test_a_large_vocabularys_sum_is_as_near(library: Library) -> None:
    row = torch.randn(150_001, generator=torch.Generator().manual_seed(4))
    assert_are_those_of_a_softmax(library, row, token_id=77_777, num_top=20)


def test_no_rows_are_no_logprobs(library: Library) -> None:
    assert logprobs(library, [], [], []).logprobs.tolist() == []


def test_a_row_keeps_its_bits_alone_with_mates_and_on_any_threads(loaded: Library) -> None:
    generator = torch.Generator().manual_seed(5)
    rows = [torch.randn(4999, generator=generator) * 3 for _ in range(40)]
    token_ids = [i * 101 for i in range(40)]
    num_top = [i % 4 * 6 for i in range(40)]
    of_each = []
    for isa in loaded.supported_isas():
        for num_threads in (1, 2, 3):
            loaded.start(isa, num_threads, cpus=None)
            found = logprobs(loaded, rows, token_ids, num_top)
            of_each.append(found)
            for i in (0, 3, 39):
                alone = logprobs(loaded, rows[i : i + 1], token_ids[i : i + 1], num_top[i : i + 1])
                assert torch.equal(alone.logprobs, found.logprobs[i : i + 1])
                num = num_top[i]
                assert torch.equal(alone.top_ids[0, :num], found.top_ids[i, :num])
                assert torch.equal(alone.top_logprobs[0, :num], found.top_logprobs[i, :num])
        loaded.stop()
    for found in of_each[1:]:
        assert torch.equal(found.logprobs, of_each[0].logprobs)
        assert torch.equal(found.top_ids, of_each[0].top_ids)
        assert torch.equal(found.top_logprobs.nan_to_num(9.0), of_each[0].top_logprobs.nan_to_num(9.0))
