"""Products whose rows keep their bits in any batch."""

import pytest
import torch

from tidegate_server.model import linear as linear_module
from tidegate_server.model.linear import RowMode, find_row_mode, linear, rows_agree
from tidegate_server.model.weights import LinearWeights

SHAPES = [(64, 48), (512, 96), (513, 32), (576, 192), (1536, 576)]


def random_weights(inputs: int, outputs: int, dtype: torch.dtype = torch.float32, bias: bool = False) -> LinearWeights:
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(inputs, outputs, generator=generator).to(dtype)
    return LinearWeights(weight, torch.randn(outputs, generator=generator).to(dtype) if bias else None)


@pytest.mark.parametrize("mode", RowMode)
@pytest.mark.parametrize("num_rows", [1, 2, 15, 16, 17, 40])
@pytest.mark.parametrize("bias", [False, True])
def test_every_mode_computes_the_product(mode: RowMode, num_rows: int, bias: bool) -> None:
    weights = random_weights(1100, 24, bias=bias)
    x = torch.randn(num_rows, 1100)
    expected = x.double() @ weights.weight.double() + (0 if weights.bias is None else weights.bias.double())
    torch.testing.assert_close(linear(x, weights, mode), expected.float(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_the_chosen_mode_a_row_keeps_its_bits(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    weights = random_weights(inputs, outputs, dtype)
    mode = find_row_mode([weights])
    x = torch.randn(70, inputs, generator=torch.Generator().manual_seed(1)).to(dtype)
    together = linear(x, weights, mode)
    for num_rows in range(1, 70):
        assert torch.equal(linear(x[:num_rows], weights, mode), together[:num_rows]), num_rows
    order = torch.randperm(70, generator=torch.Generator().manual_seed(2))
    assert torch.equal(linear(x[order], weights, mode), together[order])


def test_tiles_keep_a_rows_bits_wherever_it_stands() -> None:
    weights = random_weights(576, 192)
    assert rows_agree(weights, RowMode.TILES)


def test_where_spans_do_not_agree_tiles_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_module, "rows_agree", lambda weights, mode: weights.weight.shape != (513, 32))
    assert find_row_mode([random_weights(64, 48)]) is RowMode.SPANS
    assert find_row_mode([random_weights(64, 48), random_weights(513, 32)]) is RowMode.TILES
