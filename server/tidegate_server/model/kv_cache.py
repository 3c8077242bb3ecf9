"""The paged KV cache: how many blocks there can be on device and host, and the tensor that holds them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tidegate_kernels.cpu.large_pages import LargePages
from tidegate_server.errors import InvalidSetting
from tidegate_server.model.config import ModelConfig
from tidegate_server.settings import MIN_MODEL_LEN, EngineSettings

CPU_DEFAULT_BYTES = 1 << 30
CPU_SHARE = 0.25  # of the available memory: the API process, the allocator and the page cache need some too
GPU_SHARE = 0.85  # of what the weights left free; the rest is for activations and the allocator's gaps

SWAP_DEFAULT_BYTES = 4 << 30  # beside a GPU; on a CPU none: the same memory is worth more as KV cache
SWAP_SHARE = 0.25  # of the free host memory, at most, where nobody chose

_MEMORY_FLAG = "--kv-cache-memory"
_BLOCKS_FLAG = "--num-kv-blocks"
_SWAP_FLAG = "--swap-memory"


@dataclass(frozen=True, slots=True)
class KvCachePlan:
    """Sizes that fit together."""

    num_blocks: int  # usable ones; block 0, the null block, comes on top
    max_model_len: int  # tokens; all of them fit into the blocks
    block_bytes: int
    lowered_from: int | None  # the checkpoint's context, when the blocks could not hold it
    num_host_blocks: int  # for what leaves the device; block 0, never used, comes on top. 0: no swap


@dataclass(frozen=True, slots=True)
class KvCache:
    """`[blocks + 1, layers, 2, kv_heads, block_size, head_dim]`: one block is contiguous over all layers."""

    blocks: Tensor
    layers: tuple[Tensor, ...]  # per layer the view `[blocks + 1, 2, kv_heads, block_size, head_dim]`


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes that one block takes over all layers."""
    return config.num_layers * 2 * config.kv_size * block_size * dtype.itemsize


def plan_kv_cache(
    config: ModelConfig,
    settings: EngineSettings,
    dtype: torch.dtype,
    device_type: str,
    available_bytes: int,
    available_host_bytes: int,
) -> KvCachePlan:
    """Choose the numbers of blocks and the longest request.

    Args:
        available_bytes: free memory of the device once the weights are loaded.
        available_host_bytes: free memory of the host; on a CPU, where it is the same, the KV cache comes out of it too.

    Raises:
        InvalidSetting: a setting that cannot be met; names its flag and both numbers.
    """
    size = block_bytes(config, settings.block_size, dtype)
    num_blocks = _num_blocks(settings, size, device_type, available_bytes)
    flag = _MEMORY_FLAG if settings.num_kv_blocks is None else _BLOCKS_FLAG
    if num_blocks * settings.block_size < MIN_MODEL_LEN:
        raise InvalidSetting(
            flag,
            f"{num_blocks} KV block of {settings.block_size} token cannot hold a prompt and its answer; give more, "
            "or a larger --block-size",
        )
    if (num_blocks + 1) * size > available_bytes:
        raise InvalidSetting(
            flag, f"{num_blocks} KV blocks take {_mib(num_blocks * size)}; {_mib(available_bytes)} are available"
        )
    max_model_len, lowered_from = _max_model_len(config, settings, num_blocks, size)
    left_bytes = available_host_bytes - ((num_blocks + 1) * size if device_type == "cpu" else 0)
    num_host_blocks = _num_host_blocks(settings, size, device_type, left_bytes)
    return KvCachePlan(num_blocks, max_model_len, size, lowered_from, num_host_blocks)


def _num_blocks(settings: EngineSettings, size: int, device_type: str, available_bytes: int) -> int:
    if settings.num_kv_blocks is not None:
        if settings.num_kv_blocks < 1:
            raise InvalidSetting(_BLOCKS_FLAG, f"{settings.num_kv_blocks} blocks hold no token; give at least 1")
        return settings.num_kv_blocks
    if settings.kv_cache_memory_bytes is not None:
        memory = settings.kv_cache_memory_bytes
    elif device_type == "cpu":
        memory = min(CPU_DEFAULT_BYTES, int(available_bytes * CPU_SHARE))
    else:
        memory = int(available_bytes * GPU_SHARE)
    num_blocks = memory // size - 1  # one is the null block
    if num_blocks < 1:
        raise InvalidSetting(
            _MEMORY_FLAG,
            f"{_mib(memory)} hold no KV block of {settings.block_size} tokens beside the null block; "
            f"give at least {_mib(2 * size)}",
        )
    return num_blocks


def _num_host_blocks(settings: EngineSettings, size: int, device_type: str, left_bytes: int) -> int:
    memory = settings.swap_memory_bytes
    if memory is None:
        memory = 0 if device_type == "cpu" else min(SWAP_DEFAULT_BYTES, int(left_bytes * SWAP_SHARE))
        return max(0, memory // size - 1)
    if memory == 0:
        return 0
    if memory > left_bytes:
        raise InvalidSetting(
            _SWAP_FLAG, f"{_mib(memory)} of host memory were asked for; weights and KV cache leave {_mib(left_bytes)}"
        )
    if memory < 2 * size:
        raise InvalidSetting(
            _SWAP_FLAG,
            f"{_mib(memory)} hold no KV block of {settings.block_size} tokens beside the unused block 0; "
            f"give at least {_mib(2 * size)}, or 0 for none",
        )
    return memory // size - 1


def _max_model_len(config: ModelConfig, settings: EngineSettings, num_blocks: int, size: int) -> tuple[int, int | None]:
    """The longest request, and the context it was lowered from, if it was."""
    capacity = num_blocks * settings.block_size
    wanted = settings.max_model_len
    if wanted is None:
        if config.context_len <= capacity:
            return config.context_len, None
        return capacity, config.context_len
    if wanted > config.context_len:
        raise InvalidSetting(
            "--max-model-len", f"{wanted} tokens are more than the {config.context_len} the model was trained for"
        )
    if wanted > capacity:
        needed = -(-wanted // settings.block_size)
        raise InvalidSetting(
            "--max-model-len",
            f"a request of {wanted} tokens needs {needed} KV blocks ({_mib(needed * size)}); there are {num_blocks}, "
            f"which hold {capacity} tokens: lower it, or give more with {_MEMORY_FLAG} or {_BLOCKS_FLAG}",
        )
    return wanted, None


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"


def allocate_kv_cache(
    config: ModelConfig, plan: KvCachePlan, block_size: int, dtype: torch.dtype, device: torch.device
) -> KvCache:
    """The cache, uninitialised on a GPU: what is read was written before, but for the null block, which is masked."""
    shape = (plan.num_blocks + 1, config.num_layers, 2, config.num_kv_heads, block_size, config.head_dim)
    if device.type == "cpu":
        blocks = LargePages().take(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
    else:
        blocks = torch.empty(shape, dtype=dtype, device=device)
    return KvCache(blocks=blocks, layers=blocks.unbind(1))
