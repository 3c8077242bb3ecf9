"""Rows of a packed embedding: the numbers that were packed, whatever the packing."""

from ctypes import pointer

import pytest
import torch
from torch import Tensor

from tests.kernels.cpu.weights import QUANTIZED, quantized_rows
from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.packed_linear import PackedLinear, pack_linear
from tidegate_kernels.cpu.structs import Packing, TgEmbed


def embed(library: Library, embedding: PackedLinear, token_ids: list[int]) -> Tensor:
    ids = torch.tensor(token_ids, dtype=torch.int64)
    y = torch.full((len(ids), embedding.struct.k), torch.nan)
    library.run_embed(
        TgEmbed(embedding=pointer(embedding.struct), token_ids=ids.data_ptr(), y=y.data_ptr(), m=len(ids))
    )
    return y


@pytest.mark.parametrize("packing", [Packing.F32, Packing.BF16, Packing.BF16_PAIRS])
@pytest.mark.parametrize("num_tokens", [1, 16, 17, 50])
@pytest.mark.parametrize("num_inputs", [2, 34])
def test_tokens_become_their_rows(library: Library, packing: Packing, num_tokens: int, num_inputs: int) -> None:
    numbers = torch.randn(num_tokens, num_inputs).bfloat16().float()
    embedding = pack_linear(library, [numbers], None, packing)
    token_ids = [num_tokens - 1, 0, num_tokens // 2, 0]
    assert torch.equal(embed(library, embedding, token_ids), numbers[token_ids])


@pytest.mark.parametrize("packing", QUANTIZED)
def test_quantised_tokens_become_their_numbers(library: Library, packing: Packing) -> None:
    rows, numbers = quantized_rows(packing, 50, 512)
    embedding = pack_linear(library, [rows], None, packing)
    assert torch.equal(embed(library, embedding, list(range(50))), numbers)


def test_no_tokens_give_no_rows(library: Library) -> None:
    assert embed(library, pack_linear(library, [torch.randn(20, 8)], None, Packing.F32), []).shape == (0, 8)
