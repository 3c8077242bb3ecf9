"""Products whose rows keep their bits in any batch."""

import pytest
import torch

from tidegate_server.model import linear as linear_module
from tidegate_server.model.linear import (
    PLAIN,
    TILE_SIZES,
    TOGETHER,
    RowPlan,
    find_row_plan,
    linear,
    tile_rows,
    tiled,
)
from tidegate_server.model.weights import LinearWeights

SHAPES = [(64, 48), (384, 96), (400, 32), (576, 192), (1536, 576)]
PLANS = [PLAIN, TOGETHER, tiled((16,)), tiled(TILE_SIZES)]


def random_weights(inputs: int, outputs: int, dtype: torch.dtype = torch.float32, bias: bool = False) -> LinearWeights:
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(inputs, outputs, generator=generator).to(dtype)
    return LinearWeights(weight, torch.randn(outputs, generator=generator).to(dtype) if bias else None)


@pytest.mark.parametrize("plan", PLANS, ids=[plan.name for plan in PLANS])
@pytest.mark.parametrize("num_rows", [1, 2, 15, 16, 17, 90])
@pytest.mark.parametrize("bias", [False, True])
def test_every_plan_computes_the_product(plan: RowPlan, num_rows: int, bias: bool) -> None:
    weights = random_weights(1100, 24, bias=bias)
    x = torch.randn(num_rows, 1100, generator=torch.Generator().manual_seed(0))
    expected = x.double() @ weights.weight.double() + (0 if weights.bias is None else weights.bias.double())
    torch.testing.assert_close(linear(x, weights, plan), expected.float(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_the_chosen_plan_a_row_keeps_its_bits(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    weights = random_weights(inputs, outputs, dtype)
    plan = find_row_plan([weights])
    x = torch.randn(150, inputs, generator=torch.Generator().manual_seed(1)).to(dtype)
    together = linear(x, weights, plan)
    for num_rows in range(1, 150):
        assert torch.equal(linear(x[:num_rows], weights, plan), together[:num_rows]), num_rows
    order = torch.randperm(150, generator=torch.Generator().manual_seed(2))
    assert torch.equal(linear(x[order], weights, plan), together[order])


def test_where_rows_together_do_not_agree_tiles_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, awkward = random_weights(64, 48), random_weights(400, 32)
    kinds: dict[int, list[int | None]] = {id(usual): [4, 4, 4], id(awkward): [4, 16, 16]}
    monkeypatch.setattr(linear_module, "rows_agree", lambda weights, plan: weights is not awkward)
    monkeypatch.setattr(linear_module, "_kinds", lambda weights: kinds[id(weights)])
    assert find_row_plan([usual]) == TOGETHER
    assert find_row_plan([usual, awkward]) == tiled((16, 64))
    kinds[id(usual)] = [4, None, 4]
    assert find_row_plan([usual, awkward]) == tiled((4,))


def test_where_no_tile_is_steady_every_row_is_computed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_module, "rows_agree", lambda weights, plan: False)
    monkeypatch.setattr(linear_module, "_kinds", lambda weights: [None, None, None])
    plan = find_row_plan([random_weights(64, 48)])
    assert plan == tiled((1,))
    assert linear(torch.ones(3, 64), random_weights(64, 48), plan).shape == (3, 48)


@pytest.mark.parametrize(
    ("num_rows", "expected"),
    [
        (1, [4]),
        (4, [4]),
        (7, [4, 4]),
        (8, [16]),
        (16, [16]),
        (20, [16, 4]),
        (31, [16, 16]),
        (40, [64]),
        (100, [64, 64]),
        (145, [64, 64, 16, 4]),
    ],
)
def test_tiles_cover_the_rows_with_little_waste(num_rows: int, expected: list[int]) -> None:
    assert list(tile_rows(num_rows, TILE_SIZES)) == expected
