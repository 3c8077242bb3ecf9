"""Writing to the paged cache: Triton and the reference move the same bits to the same cells, and touch no other."""

import pytest
import torch
from torch import Tensor
from torch.utils import deterministic

from tests.kernels.tolerances import DTYPES
from tidegate_kernels.ops import StoreKv
from tidegate_kernels.store_kv import store_kv
from tidegate_kernels.store_kv_reference import store_kv as store_kv_reference

NUM_BLOCKS, NUM_LAYERS, LAYER = 6, 3, 1

both = pytest.mark.parametrize("store", [store_kv, store_kv_reference], ids=["triton", "torch"])


def empty_cache(num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full(
        (NUM_BLOCKS, NUM_LAYERS, 2, num_kv_heads, block_size, head_dim), torch.nan, dtype=dtype, device=device
    )


@both
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_tokens", "num_kv_heads", "block_size", "head_dim"), [(1, 1, 1, 1), (7, 3, 16, 64), (17, 2, 8, 80)]
)
def test_each_token_lands_in_its_slot_and_nothing_else_changes(
    store: StoreKv,
    dtype: torch.dtype,
    num_tokens: int,
    num_kv_heads: int,
    block_size: int,
    head_dim: int,
    device: torch.device,
) -> None:
    cache = empty_cache(num_kv_heads, block_size, head_dim, dtype, device)
    expected = cache.clone()
    fused = torch.randn(num_tokens, 3 * num_kv_heads, head_dim, device=device).to(dtype)
    key, value = fused[:, num_kv_heads : 2 * num_kv_heads], fused[:, 2 * num_kv_heads :]  # strided over tokens
    slots = torch.randperm((NUM_BLOCKS - 1) * block_size, device=device)[:num_tokens] + block_size
    for token, slot in enumerate(slots.tolist()):
        expected[slot // block_size, LAYER, 0, :, slot % block_size] = key[token]
        expected[slot // block_size, LAYER, 1, :, slot % block_size] = value[token]

    store(key, value, cache[:, LAYER], slots)

    assert torch.equal(cache.view(torch.uint8), expected.view(torch.uint8))


@both
def test_padding_tokens_share_a_slot_of_the_null_block(store: StoreKv, device: torch.device) -> None:
    cache = empty_cache(2, 4, 8, torch.float32, device)
    key = torch.randn(5, 2, 8, device=device)
    store(key, key, cache[:, LAYER], torch.tensor([9, 0, 0, 0, 0], device=device))
    assert torch.equal(cache[2, LAYER, 0, :, 1], key[0])
    assert cache[1, LAYER].isnan().all()


@both
def test_no_tokens_change_nothing(store: StoreKv, device: torch.device) -> None:
    cache = empty_cache(2, 4, 8, torch.float32, device)
    none = torch.empty(0, 2, 8, device=device)
    store(none, none, cache[:, LAYER], torch.empty(0, dtype=torch.int64, device=device))
    assert cache.isnan().all()


@both
def test_a_block_past_two_to_the_31_elements_is_reached(
    store: StoreKv, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = 4 * 2 * 16 * 64
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", False)  # 4 GiB, hardly touched
    cache = torch.empty(2**31 // block + 2, 2, 4, 16, 64, dtype=torch.float16, device=device)
    key, value = torch.randn(2, 1, 4, 64, device=device).half()
    store(key, value, cache, torch.tensor([(len(cache) - 1) * 16 + 5], device=device))
    assert torch.equal(cache[-1, 0, :, 5], key[0])
    assert torch.equal(cache[-1, 1, :, 5], value[0])


def test_a_cache_of_another_shape_is_refused(device: torch.device) -> None:
    cache = empty_cache(2, 4, 8, torch.float32, device)
    key = torch.ones(1, 3, 8, device=device)
    with pytest.raises(ValueError, match="do not fit"):
        store_kv(key, key, cache[:, LAYER], torch.zeros(1, dtype=torch.int64, device=device))


def test_a_cache_of_another_dtype_is_refused(device: torch.device) -> None:
    cache = empty_cache(2, 4, 8, torch.float16, device)
    key = torch.ones(1, 2, 8, device=device)
    with pytest.raises(ValueError, match="differ in dtype"):
        store_kv(key, key, cache[:, LAYER], torch.zeros(1, dtype=torch.int64, device=device))
