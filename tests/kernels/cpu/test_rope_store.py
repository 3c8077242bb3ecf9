"""Rotating and writing to the cache in C: the bits of the references, in the right cells, and no other cell touched."""

import pytest
import torch
from torch import Tensor
from torch.utils import deterministic

from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.structs import Dtype, TgRopeStore
from tidegate_kernels.rope_reference import rope as rope_reference

NUM_LAYERS, LAYER = 3, 1
MAX_POSITIONS = 200

CACHE_DTYPES = {torch.float32: Dtype.F32, torch.bfloat16: Dtype.BF16}
cache_dtypes = pytest.mark.parametrize("dtype", CACHE_DTYPES, ids=str)


def tables(head_dim: int) -> tuple[Tensor, Tensor]:
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.arange(MAX_POSITIONS).unsqueeze(1) * frequencies
    return angles.cos(), angles.sin()


def empty_cache(num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    return torch.full((num_blocks, NUM_LAYERS, 2, num_kv_heads, block_size * head_dim), torch.nan, dtype=dtype)


def rope_store(
    library: Library, qkv: Tensor, num_kv_heads: int, layer: Tensor, block_size: int, positions: Tensor, slots: Tensor
) -> None:
    """`qkv` is `[num_tokens, num_heads, head_dim]` and `layer` one layer of `empty_cache`; both change in place."""
    head_dim = qkv.shape[2]
    cos, sin = tables(head_dim)
    library.run_rope_store(
        TgRopeStore(
            qkv=qkv.data_ptr(),
            kv_cache=layer.data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            positions=positions.data_ptr(),
            slot_mapping=slots.data_ptr(),
            num_tokens=len(qkv),
            qkv_stride=qkv.stride(0),
            block_stride=layer.stride(0),
            num_q_heads=qkv.shape[1] - 2 * num_kv_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            block_size=block_size,
            kv_dtype=CACHE_DTYPES[layer.dtype],
        )
    )


@cache_dtypes
@pytest.mark.parametrize(
    ("num_tokens", "num_q_heads", "num_kv_heads", "head_dim", "block_size"),
    [(1, 1, 1, 2, 1), (7, 9, 3, 64, 16), (17, 5, 1, 80, 8), (150, 4, 2, 34, 32), (2, 2, 2, 256, 64)],
)
def test_each_token_gets_the_references_bits_and_no_other_cell_changes(
    library: Library,
    dtype: torch.dtype,
    num_tokens: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
) -> None:
    num_blocks = -(-num_tokens // block_size) + 2
    cache = empty_cache(num_blocks, num_kv_heads, block_size, head_dim, dtype)
    qkv = torch.randn(num_tokens, num_q_heads + 2 * num_kv_heads + 1, head_dim)[:, :-1]  # rows lie apart
    positions = torch.randint(0, MAX_POSITIONS, (num_tokens,))
    slots = torch.randperm((num_blocks - 1) * block_size)[:num_tokens] + block_size
    key_at, value_at = num_q_heads, num_q_heads + num_kv_heads
    query, key, value = qkv[:, :key_at].clone(), qkv[:, key_at:value_at].clone(), qkv[:, value_at:].clone()
    rotated_query, rotated_key = rope_reference(query, key, *tables(head_dim), positions)
    expected_qkv = torch.cat((rotated_query, key, value), dim=1)
    expected = cache.clone()
    keys = expected[:, LAYER, 0].view(num_blocks, num_kv_heads, head_dim, block_size)
    values = expected[:, LAYER, 1].view(num_blocks, num_kv_heads, block_size, head_dim)
    for token, slot in enumerate(slots.tolist()):
        keys[slot // block_size, :, :, slot % block_size] = rotated_key[token].to(dtype)
        values[slot // block_size, :, slot % block_size] = value[token].to(dtype)

    rope_store(library, qkv, num_kv_heads, cache[:, LAYER], block_size, positions, slots)

    assert torch.equal(qkv, expected_qkv)
    assert torch.equal(cache.view(torch.uint8), expected.view(torch.uint8))


def test_padding_tokens_share_a_slot_of_the_null_block(library: Library) -> None:
    cache = empty_cache(4, 2, 4, 8, torch.float32)
    qkv = torch.randn(5, 6, 8)
    value = qkv[0, 4:].clone()
    rope_store(library, qkv, 2, cache[:, LAYER], 4, torch.arange(5), torch.tensor([9, 0, 0, 0, 0]))
    assert torch.equal(cache[2, LAYER, 1].view(2, 4, 8)[:, 1], value)
    assert cache[[1, 3], LAYER].isnan().all()


def test_no_tokens_change_nothing(library: Library) -> None:
    cache = empty_cache(4, 2, 4, 8, torch.float32)
    none = torch.empty(0, dtype=torch.int64)
    rope_store(library, torch.empty(0, 6, 8), 2, cache[:, LAYER], 4, none, none)
    assert cache.isnan().all()


def test_nan_is_stored_as_nan(library: Library) -> None:
    cache = torch.zeros(2, NUM_LAYERS, 2, 1, 4 * 8, dtype=torch.bfloat16)
    qkv = torch.full((1, 3, 8), torch.nan)
    rope_store(library, qkv, 1, cache[:, LAYER], 4, torch.zeros(1, dtype=torch.int64), torch.tensor([5]))
    assert cache[1, LAYER].isnan().sum() == 2 * 8


def test_a_block_past_two_to_the_31_elements_is_reached(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    block = 2 * 4 * 16 * 64
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", False)  # 4 GiB, hardly touched
    layer = torch.empty(2**31 // block + 2, 2, 4, 16 * 64, dtype=torch.bfloat16)
    qkv = torch.randn(1, 12, 64)
    query, key, value = qkv[:, :4].clone(), qkv[:, 4:8], qkv[:, 8:]
    positions = torch.tensor([77])
    _, rotated_key = rope_reference(query, key, *tables(64), positions)
    rope_store(library, qkv, 4, layer, 16, positions, torch.tensor([(len(layer) - 1) * 16 + 5]))
    assert torch.equal(layer[-1, 0].view(4, 64, 16)[:, :, 5], rotated_key[0].bfloat16())
    assert torch.equal(layer[-1, 1].view(4, 16, 64)[:, 5], value[0].bfloat16())
