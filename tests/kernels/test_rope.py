"""Rotary embedding: Triton against the reference, the reference against rotations written as complex numbers."""

import pytest
import torch
from torch import Tensor

from tests.kernels.tolerances import DTYPES, assert_agrees
from tidegate_kernels.ops import Rope
from tidegate_kernels.rope import rope
from tidegate_kernels.rope_reference import rope as rope_reference

MAX_POSITIONS = 200


def tables(head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2, device=device) / head_dim)
    angles = torch.arange(MAX_POSITIONS, device=device).unsqueeze(1) * frequencies
    return angles.cos(), angles.sin()


def heads(
    num_tokens: int, num_q_heads: int, num_kv_heads: int, head_dim: int, device: torch.device
) -> tuple[Tensor, ...]:
    """Query and key as the fused projection leaves them (strided over tokens), and positions in no order."""
    fused = torch.randn(num_tokens, num_q_heads + 2 * num_kv_heads, head_dim, device=device)
    positions = torch.randint(0, MAX_POSITIONS, (num_tokens,), device=device)
    return fused[:, :num_q_heads], fused[:, num_q_heads : num_q_heads + num_kv_heads], positions


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_tokens", "num_q_heads", "num_kv_heads", "head_dim"),
    [(1, 1, 1, 2), (5, 9, 3, 64), (3, 5, 1, 80), (2, 4, 4, 96), (1, 8, 2, 128)],
)
def test_heads_agree_with_the_reference(
    dtype: torch.dtype, num_tokens: int, num_q_heads: int, num_kv_heads: int, head_dim: int, device: torch.device
) -> None:
    query, key, positions = heads(num_tokens, num_q_heads, num_kv_heads, head_dim, device)
    cos, sin = tables(head_dim, device)
    query, key = query.to(dtype), key.to(dtype)
    for actual, expected in zip(
        rope(query, key, cos, sin, positions), rope_reference(query, key, cos, sin, positions), strict=True
    ):
        assert_agrees(actual, expected)


def test_the_reference_turns_pairs_of_halves_by_the_angle() -> None:
    query, key, positions = heads(6, 3, 1, 16, torch.device("cpu"))
    cos, sin = tables(16, torch.device("cpu"))
    turn = torch.complex(cos, sin)[positions].unsqueeze(1)
    for x, actual in zip((query, key), rope_reference(query, key, cos, sin, positions), strict=True):
        turned = torch.complex(x[..., :8].contiguous(), x[..., 8:].contiguous()) * turn
        assert_agrees(actual, torch.cat((turned.real, turned.imag), dim=-1))


@pytest.mark.parametrize("rotate", [rope, rope_reference], ids=["triton", "torch"])
def test_a_token_has_the_same_bits_alone_and_in_a_batch(rotate: Rope, device: torch.device) -> None:
    query, key, positions = heads(7, 3, 1, 34, device)
    cos, sin = tables(34, device)
    together = rotate(query, key, cos, sin, positions)
    for i in range(len(positions)):
        alone = rotate(query[i : i + 1], key[i : i + 1], cos, sin, positions[i : i + 1])
        for one, all_rows in zip(alone, together, strict=True):
            assert torch.equal(one[0], all_rows[i])


def test_inputs_are_left_as_they_were(device: torch.device) -> None:
    query, key, positions = heads(3, 2, 1, 8, device)
    before = query.clone(), key.clone()
    rope(query, key, *tables(8, device), positions)
    assert torch.equal(query, before[0])
    assert torch.equal(key, before[1])


def test_no_tokens_give_no_rows(device: torch.device) -> None:
    query, key, positions = heads(0, 2, 1, 8, device)
    assert rope(query, key, *tables(8, device), positions)[0].shape == (0, 2, 8)


def test_tables_of_another_head_are_refused(device: torch.device) -> None:
    query, key, positions = heads(3, 2, 1, 8, device)
    with pytest.raises(ValueError, match=r"cos must be dense fp32 \[max_positions, 4\]"):
        rope(query, key, *tables(16, device), positions)


def test_a_key_of_another_dtype_is_refused(device: torch.device) -> None:
    query, key, positions = heads(3, 2, 1, 8, device)
    with pytest.raises(ValueError, match="does not fit query"):
        rope(query, key.half(), *tables(8, device), positions)
