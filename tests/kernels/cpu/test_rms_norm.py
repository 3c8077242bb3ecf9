"""RMS norm in C against fp64, and a row against itself in any company."""

import pytest
import torch
from torch import Tensor

from tests.kernels.tolerances import assert_agrees
from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.structs import Dtype, TgRmsNorm

EPS = 1e-5


def rms_norm(
    library: Library,
    x: Tensor,
    weight: Tensor,
    y_dtype: torch.dtype = torch.float32,
    rows: Tensor | None = None,
) -> Tensor:
    x = torch.nn.functional.pad(x, (0, 3))  # rows lie apart
    num_rows, width = len(x) if rows is None else len(rows), len(weight)
    y = torch.full((num_rows, width + 5), torch.nan, dtype=y_dtype)
    library.run_rms_norm(
        TgRmsNorm(
            x=x.data_ptr(),
            rows=None if rows is None else rows.data_ptr(),
            weight=weight.data_ptr(),
            y=y.data_ptr(),
            m=num_rows,
            n=width,
            x_stride=x.stride(0),
            y_stride=y.stride(0),
            eps=EPS,
            y_dtype=Dtype.BF16 if y_dtype == torch.bfloat16 else Dtype.F32,
        )
    )
    assert y[:, width:].isnan().all(), "written past a row's end"
    return y[:, :width]


def plain(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x / torch.sqrt(x.square().mean(dim=1, keepdim=True) + EPS) * weight


@pytest.mark.parametrize("width", [1, 15, 16, 17, 100, 576])
@pytest.mark.parametrize("num_rows", [1, 3, 9])
@pytest.mark.parametrize("y_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_agrees_with_fp64(library: Library, width: int, num_rows: int, y_dtype: torch.dtype) -> None:
    x, weight = 3 * torch.randn(num_rows, width), torch.randn(width)
    assert_agrees(rms_norm(library, x, weight, y_dtype), plain(x, weight).to(y_dtype))


def test_a_row_has_the_same_bits_in_any_company(library: Library) -> None:
    x, weight = torch.randn(33, 576), torch.randn(576)
    together = rms_norm(library, x, weight)
    for row in range(33):
        assert torch.equal(rms_norm(library, x[row : row + 1], weight), together[row : row + 1])


def test_some_rows_are_taken_in_the_order_asked_for(library: Library) -> None:
    x, weight = torch.randn(9, 40), torch.randn(40)
    rows = torch.tensor([7, 0, 7, 3])
    assert torch.equal(rms_norm(library, x, weight, rows=rows), rms_norm(library, x, weight)[rows])


def test_no_rows_give_no_rows(library: Library) -> None:
    assert rms_norm(library, torch.empty(0, 8), torch.randn(8)).shape == (0, 8)
