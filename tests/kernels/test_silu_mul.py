"""SiLU gate: Triton against the reference, the reference against torch's own SiLU."""

import pytest
import torch

from tests.kernels.tolerances import DTYPES, assert_agrees
from tidegate_kernels.ops import SiluMul
from tidegate_kernels.silu_mul import BLOCK, silu_mul
from tidegate_kernels.silu_mul_reference import silu_mul as silu_mul_reference


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_tokens", "intermediate"), [(1, 1), (3, 37), (2, BLOCK - 1), (1, BLOCK), (2, BLOCK + 1), (1, 3 * BLOCK)]
)
def test_rows_agree_with_the_reference(
    dtype: torch.dtype, num_tokens: int, intermediate: int, device: torch.device
) -> None:
    gate_up = (3 * torch.randn(num_tokens, 2 * intermediate, device=device)).to(dtype)
    assert_agrees(silu_mul(gate_up), silu_mul_reference(gate_up))


@pytest.mark.parametrize("gate", [silu_mul, silu_mul_reference], ids=["triton", "torch"])
def test_it_is_torchs_silu_times_the_second_half(gate: SiluMul, device: torch.device) -> None:
    gate_up = 5 * torch.randn(4, 66, device=device)
    assert_agrees(gate(gate_up), torch.nn.functional.silu(gate_up[:, :33]) * gate_up[:, 33:])


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy's, in the interpreter; infinity is right
@pytest.mark.parametrize("gate", [silu_mul, silu_mul_reference], ids=["triton", "torch"])
def test_large_gates_stay_numbers(gate: SiluMul, device: torch.device) -> None:
    gate_up = torch.tensor([[-1e4, -200.0, 0.0, 200.0, 1.0, 1.0, 1.0, 1.0]], device=device)
    assert gate(gate_up).tolist() == [[0.0, 0.0, 0.0, 200.0]]


@pytest.mark.parametrize("num_tokens", [2, 3, 333])
def test_a_row_of_the_reference_has_the_same_bits_alone_and_in_a_batch(num_tokens: int) -> None:
    gate_up = torch.randn(num_tokens, 200)  # 100 outputs: two threads meet in the middle of a row
    together = silu_mul_reference(gate_up)
    for row in range(0, num_tokens, 7):
        assert torch.equal(silu_mul_reference(gate_up[row : row + 1])[0], together[row])


def test_a_row_of_the_kernel_has_the_same_bits_alone_and_in_a_batch(device: torch.device) -> None:
    gate_up = torch.randn(5, 200, device=device)
    together = silu_mul(gate_up)
    for row in range(len(gate_up)):
        assert torch.equal(silu_mul(gate_up[row : row + 1])[0], together[row])


def test_no_tokens_give_no_rows(device: torch.device) -> None:
    assert silu_mul(torch.empty(0, 8, device=device)).shape == (0, 4)


def test_an_odd_width_is_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="2 \\* intermediate"):
        silu_mul(torch.ones(2, 7, device=device))
