"""The first index of each row's maximum, over rows longer than what a thread takes at once."""

import pytest
import torch
from torch import Tensor

from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.structs import TgArgmax

# One column, either side of a vector, of the share that goes through together, and a whole vocabulary.
WIDTHS = (1, 15, 16, 17, 1023, 1024, 1025, 49_152)


def argmax(library: Library, x: Tensor) -> tuple[Tensor, Tensor]:
    num_rows, width = x.shape
    x = torch.nn.functional.pad(x, (0, 3), value=torch.inf)  # what lies between rows is larger than any number
    index, maximum = torch.full((num_rows,), -1), torch.full((num_rows,), torch.nan)
    library.run_argmax(
        TgArgmax(
            x=x.data_ptr(),
            index=index.data_ptr(),
            maximum=maximum.data_ptr(),
            m=num_rows,
            n=width,
            x_stride=x.stride(0),
        )
    )
    return index, maximum


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("num_rows", [1, 3, 64])
def test_it_finds_what_torch_finds(library: Library, width: int, num_rows: int) -> None:
    x = torch.randn(num_rows, width)
    index, maximum = argmax(library, x)
    assert torch.equal(maximum, x.amax(dim=1))
    assert torch.equal(x.gather(1, index.unsqueeze(1)).squeeze(1), maximum)


@pytest.mark.parametrize("width", WIDTHS)
def test_of_equals_the_first_wins(library: Library, width: int) -> None:
    for first in {0, width // 2, width - 1}:
        x = torch.zeros(1, width)
        x[0, first:] = 1.0
        assert argmax(library, x)[0].tolist() == [first]


@pytest.mark.parametrize("width", WIDTHS)
def test_infinities_are_numbers(library: Library, width: int) -> None:
    x = torch.full((2, width), -torch.inf)
    x[1, width - 1] = torch.inf
    index, maximum = argmax(library, x)
    assert index.tolist() == [0, width - 1]
    assert maximum.tolist() == [-torch.inf, torch.inf]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_with_a_nan_says_so(library: Library, width: int) -> None:
    for place in {0, width // 2, width - 1}:
        x = torch.zeros(2, width)
        x[0, place] = torch.nan
        _, maximum = argmax(library, x)
        assert maximum[0].isnan()
        assert maximum[1] == 0


def test_no_rows_give_nothing(library: Library) -> None:
    index, maximum = argmax(library, torch.empty(0, 8))
    assert len(index) == len(maximum) == 0
