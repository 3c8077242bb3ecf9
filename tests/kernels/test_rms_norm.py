"""RMS norm: Triton against the reference, and each against itself."""

import pytest
import torch

from tests.kernels.tolerances import DTYPES, assert_agrees
from tidegate_kernels.ops import RmsNorm
from tidegate_kernels.rms_norm import rms_norm
from tidegate_kernels.rms_norm_reference import rms_norm as rms_norm_reference

EPS = 1e-5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_tokens", "hidden"), [(1, 1), (1, 576), (3, 127), (2, 128), (5, 129), (2, 2048)])
def test_rows_agree_with_the_reference(dtype: torch.dtype, num_tokens: int, hidden: int, device: torch.device) -> None:
    x, weight = (3 * torch.randn(n, hidden, device=device).to(dtype) for n in (num_tokens, 1))
    assert_agrees(rms_norm(x, weight[0], EPS), rms_norm_reference(x, weight[0], EPS))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_heads_of_a_fused_projection_are_normed_each(dtype: torch.dtype, device: torch.device) -> None:
    fused = torch.randn(5, 9, 64, device=device).to(dtype)
    weight = torch.randn(64, device=device).to(dtype)
    for heads in (fused[:, :4], fused[:, 4:7]):  # strided over tokens
        assert_agrees(rms_norm(heads, weight, EPS), rms_norm_reference(heads, weight, EPS))


@pytest.mark.parametrize("norm", [rms_norm, rms_norm_reference], ids=["triton", "torch"])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(norm: RmsNorm, device: torch.device) -> None:
    x, weight = torch.randn(7, 577, device=device), torch.randn(577, device=device)
    together = norm(x, weight, EPS)
    for row in range(len(x)):
        assert torch.equal(norm(x[row : row + 1], weight, EPS)[0], together[row])


def test_zeros_stay_zeros(device: torch.device) -> None:
    assert torch.equal(
        rms_norm(torch.zeros(2, 8, device=device), torch.ones(8, device=device), EPS).cpu(), torch.zeros(2, 8)
    )


def test_no_tokens_give_no_rows(device: torch.device) -> None:
    assert rms_norm(torch.empty(0, 8, device=device), torch.ones(8, device=device), EPS).shape == (0, 8)


def test_a_strided_last_dimension_is_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="dense last"):
        rms_norm(torch.ones(8, 4, device=device).t(), torch.ones(8, device=device), EPS)


@pytest.mark.parametrize("weight", [torch.ones(4), torch.ones(8, dtype=torch.float16), torch.ones(16)[::2]])
def test_a_weight_that_does_not_fit_is_refused(weight: torch.Tensor, device: torch.device) -> None:
    with pytest.raises(ValueError, match="weight must be dense"):
        rms_norm(torch.ones(2, 8, device=device), weight.to(device), EPS)
