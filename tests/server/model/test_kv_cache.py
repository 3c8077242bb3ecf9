"""How many blocks there are, how long a request may be, and which flag is named when it does not fit."""

from typing import Any

import pytest
import torch

from tests.server.model.configs import SMALL_CONFIG
from tidegate_server.errors import InvalidSetting
from tidegate_server.model.kv_cache import allocate_kv_cache, block_bytes, plan_kv_cache
from tidegate_server.settings import EngineSettings

# 2 layers, keys and values, 2 heads of 8, 16 tokens, 4 bytes
BLOCK = 2 * 2 * 2 * 8 * 16 * 4
MIB = 1 << 20


def plan(available_bytes: int = 64 * MIB, device_type: str = "cpu", **fields: Any) -> tuple[int, int, int | None]:
    settings = EngineSettings(**fields)
    made = plan_kv_cache(SMALL_CONFIG, settings, torch.float32, device_type, available_bytes, 64 * MIB)
    return made.num_blocks, made.max_model_len, made.lowered_from


def num_host_blocks(device_type: str, available_host_bytes: int = 64 * MIB, **fields: Any) -> int:
    settings = EngineSettings(num_kv_blocks=9, **fields)
    return plan_kv_cache(
        SMALL_CONFIG, settings, torch.float32, device_type, 64 * MIB, available_host_bytes
    ).num_host_blocks


def test_a_block_holds_keys_and_values_of_all_layers() -> None:
    assert block_bytes(SMALL_CONFIG, 16, torch.float32) == BLOCK
    assert block_bytes(SMALL_CONFIG, 16, torch.bfloat16) == BLOCK // 2


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"num_kv_blocks": 9}, (9, 64, None), id="a number of blocks is taken as it is"),
        pytest.param({"kv_cache_memory_bytes": 10 * BLOCK}, (9, 64, None), id="memory has room for the null block too"),
        pytest.param({"kv_cache_memory_bytes": 10 * BLOCK + 1}, (9, 64, None), id="memory is rounded down"),
        pytest.param({}, (64 * MIB // 4 // BLOCK - 1, 64, None), id="a CPU gives a quarter of what is available"),
        pytest.param(
            {"available_bytes": 64 << 30}, ((1 << 30) // BLOCK - 1, 64, None), id="a CPU gives one gibibyte at most"
        ),
        pytest.param(
            {"device_type": "cuda"}, (int(64 * MIB * 0.85) // BLOCK - 1, 64, None), id="a GPU gives most of its memory"
        ),
        pytest.param({"num_kv_blocks": 4}, (4, 64, None), id="blocks for just the whole context"),
        pytest.param({"num_kv_blocks": 3}, (3, 48, 64), id="too few blocks lower the context"),
        pytest.param({"num_kv_blocks": 2, "max_model_len": 32}, (2, 32, None), id="a context that just fits"),
        pytest.param({"num_kv_blocks": 9, "max_model_len": 20}, (9, 20, None), id="a context of one's own"),
    ],
)
def test_sizes_fit_together(fields: dict[str, Any], expected: tuple[int, int, int | None]) -> None:
    assert plan(**fields) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"device_type": "cpu"}, 0, id="a CPU keeps its memory for the cache"),
        pytest.param({"device_type": "cuda"}, 16 * MIB // BLOCK - 1, id="beside a GPU a quarter of the host's"),
        pytest.param(
            {"device_type": "cuda", "available_host_bytes": 64 << 30}, (4 << 30) // BLOCK - 1, id="or 4 GiB, if less"
        ),
        pytest.param({"device_type": "cuda", "available_host_bytes": 4}, 0, id="nothing where nothing is"),
        pytest.param({"device_type": "cpu", "swap_memory_bytes": 10 * BLOCK}, 9, id="block 0 is unused"),
        pytest.param({"device_type": "cuda", "swap_memory_bytes": 0}, 0, id="none on demand"),
        pytest.param(
            {"device_type": "cpu", "available_host_bytes": 20 * BLOCK, "swap_memory_bytes": 10 * BLOCK},
            9,
            id="what the cache leaves of a CPU's",
        ),
    ],
)
def test_host_blocks_come_out_of_the_host_s_memory(fields: dict[str, Any], expected: int) -> None:
    assert num_host_blocks(**fields) == expected


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        pytest.param(
            {"device_type": "cpu", "available_host_bytes": 19 * BLOCK, "swap_memory_bytes": 10 * BLOCK},
            ("0.0 MiB",),
            id="the cache leaves too little of a CPU's",
        ),
        pytest.param({"device_type": "cuda", "swap_memory_bytes": 65 * MIB}, ("65.0 MiB", "64.0 MiB"), id="too much"),
        pytest.param({"device_type": "cuda", "swap_memory_bytes": BLOCK}, ("16 tokens", "or 0"), id="for no block"),
    ],
)
def test_swap_memory_that_cannot_be_is_named(fields: dict[str, Any], numbers: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSetting) as caught:
        num_host_blocks(**fields)
    assert caught.value.flag == "--swap-memory"
    assert all(number in str(caught.value) for number in numbers)


@pytest.mark.parametrize(
    ("fields", "flag", "numbers"),
    [
        pytest.param({"num_kv_blocks": 2, "max_model_len": 33}, "--max-model-len", ("33", "32"), id="longer than fits"),
        pytest.param(
            {"max_model_len": 65}, "--max-model-len", ("65", "64"), id="longer than the model was trained for"
        ),
        pytest.param({"num_kv_blocks": 0}, "--num-kv-blocks", ("0", "at least 1"), id="no blocks"),
        pytest.param({"kv_cache_memory_bytes": BLOCK}, "--kv-cache-memory", ("16 tokens",), id="memory for no block"),
        pytest.param({"num_kv_blocks": 1, "block_size": 1}, "--num-kv-blocks", ("1 token",), id="room for one token"),
        pytest.param(
            {"kv_cache_memory_bytes": 2 * BLOCK // 16, "block_size": 1},
            "--kv-cache-memory",
            ("1 token",),
            id="memory for one token",
        ),
        pytest.param({"num_kv_blocks": 10**9}, "--num-kv-blocks", ("64.0 MiB",), id="more blocks than memory"),
        pytest.param({"kv_cache_memory_bytes": 10**12}, "--kv-cache-memory", ("64.0 MiB",), id="more than there is"),
    ],
)
def test_a_setting_that_cannot_be_met_is_named(fields: dict[str, Any], flag: str, numbers: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSetting) as caught:
        plan(**fields)
    assert caught.value.flag == flag
    assert all(number in str(caught.value) for number in numbers)


def test_one_block_is_contiguous_over_all_layers() -> None:
    made = plan_kv_cache(SMALL_CONFIG, EngineSettings(num_kv_blocks=3), torch.float32, "cpu", 64 * MIB, 64 * MIB)
    cache = allocate_kv_cache(SMALL_CONFIG, made, 16, torch.float32, torch.device("cpu"))
    assert cache.blocks.shape == (4, 2, 2, 2, 16, 8)
    assert cache.blocks[1].is_contiguous()
    assert [tuple(layer.shape) for layer in cache.layers] == [(4, 2, 2, 16, 8)] * 2
    cache.layers[1][3] = 7.0
    assert bool((cache.blocks[3, 1] == 7.0).all())
