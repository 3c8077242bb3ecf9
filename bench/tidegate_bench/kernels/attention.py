"""Attention over the paged cache, and writing to it, beside torch's own functions on tensors that suit them better."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tidegate_bench.kernels.case import Case, num_copies
from tidegate_kernels.cpu.large_pages import LargePages
from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.structs import Dtype, TgAttention, TgRopeStore
from tidegate_kernels.rope_reference import rope
from tidegate_kernels.store_kv_reference import store_kv
from tidegate_server.model.config import ModelConfig
from tidegate_server.model.rope_table import rope_table

BLOCK_SIZE = 16
KV_DTYPES = {"fp32 KV": torch.float32, "bf16 KV": torch.bfloat16}
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
NUM_TOKENS_STORED = (1, 64, 256)


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests that are alike: each computes its last `num_new` tokens of `context`."""

    name: str
    num_requests: int
    num_new: int
    context: int  # keys, the new tokens' own included; a multiple of the block size


SHAPES = (
    Shape("decode", 1, 1, 256),
    Shape("decode", 1, 1, 1024),
    Shape("decode", 16, 1, 1024),
    Shape("decode", 64, 1, 256),
    Shape("decode", 64, 1, 1024),
    Shape("prefill", 1, 256, 256),
    Shape("prefill", 1, 512, 512),
    Shape("prefill", 1, 256, 1024),
)


def attention_cases(library: Library, config: ModelConfig, shapes: Sequence[Shape] = SHAPES) -> Iterator[Case]:
    """One case for each shape and dtype of the cache."""
    for shape in shapes:
        for data, dtype in KV_DTYPES.items():
            yield _attention_case(library, config, shape, data, dtype)


def rope_store_cases(
    library: Library, config: ModelConfig, num_tokens: Sequence[int] = NUM_TOKENS_STORED
) -> Iterator[Case]:
    """One case for each number of new tokens and dtype of the cache."""
    for count in num_tokens:
        for data, dtype in KV_DTYPES.items():
            yield _rope_store_case(library, config, count, data, dtype)


def num_scores(shape: Shape) -> int:
    """Pairs of a query head's new tokens and the keys that each may see."""
    first, last = shape.context - shape.num_new + 1, shape.context
    return shape.num_requests * (first + last) * shape.num_new // 2


def _attention_case(library: Library, config: ModelConfig, shape: Shape, data: str, dtype: torch.dtype) -> Case:
    num_tokens = shape.num_requests * shape.num_new
    query = torch.randn(num_tokens, config.num_q_heads, config.head_dim)
    # [2, requests, kv_heads, context, head_dim]: keys, values
    plain = torch.randn(2, shape.num_requests, config.num_kv_heads, shape.context, config.head_dim).to(dtype)
    cache, block_table = _paged(plain, num_copies(plain.nbytes))
    query_start = torch.arange(shape.num_requests + 1, dtype=torch.int32) * shape.num_new
    context_len = torch.full((shape.num_requests,), shape.context, dtype=torch.int32)
    return Case(
        kernel="attention",
        what=f"{shape.name}, {shape.context} keys",
        rows=num_tokens,
        data=data,
        moved_bytes=plain.nbytes + 2 * query.nbytes,
        flop=4 * config.num_q_heads * config.head_dim * num_scores(shape),  # scores, and the sum of values
        peaks=("float32",),
        ours=_our_attention(library, config, query, cache, block_table, query_start, context_len),
        torch=_torch_attention(config, shape, query.to(dtype), plain),
        tolerance=TOLERANCES[dtype],
        kept=(query, cache, block_table, query_start, context_len),
    )


def _paged(plain: Tensor, num_layers: int) -> tuple[Tensor, Tensor]:
    """The cache as the kernels lay it out, the same in every layer, and the table of its blocks, in no order.

    Returns:
        `[blocks, layers, 2, kv_heads * block_size * head_dim]`, block 0 free; int32 `[requests, blocks of each]`.
    """
    _, num_requests, num_kv_heads, context, head_dim = plain.shape
    per_request = context // BLOCK_SIZE
    num_blocks = num_requests * per_request
    table = (torch.randperm(num_blocks) + 1).view(num_requests, per_request)
    shape = (num_blocks + 1, num_layers, 2, num_kv_heads * BLOCK_SIZE * head_dim)
    cache = LargePages().take(math.prod(shape) * plain.itemsize).view(plain.dtype).view(shape)
    # [2, requests, blocks of each, kv_heads, block_size, head_dim]
    blocks = plain.view(2, num_requests, num_kv_heads, per_request, BLOCK_SIZE, head_dim).transpose(2, 3)
    keys, values = blocks[0].transpose(-1, -2), blocks[1]
    for layer in range(num_layers):
        cache[table, layer, 0] = keys.flatten(2)
        cache[table, layer, 1] = values.flatten(2)
    return cache, table.to(torch.int32)


def _our_attention(
    library: Library,
    config: ModelConfig,
    query: Tensor,
    cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    context_len: Tensor,
) -> Callable[[], Tensor]:
    out = torch.empty_like(query)
    ops = itertools.cycle(
        [
            TgAttention(
                query=query.data_ptr(),
                out=out.data_ptr(),
                kv_cache=cache[:, layer].data_ptr(),
                block_table=block_table.data_ptr(),
                query_start=query_start.data_ptr(),
                context_len=context_len.data_ptr(),
                query_stride=query.stride(0),
                out_stride=out.stride(0),
                block_stride=cache.stride(0),
                table_stride=block_table.stride(0),
                num_requests=len(context_len),
                num_q_heads=config.num_q_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                block_size=BLOCK_SIZE,
                kv_dtype=_dtype(cache.dtype),
                out_dtype=Dtype.F32,
                scale=config.attention_scale,
            )
            for layer in range(cache.shape[1])
        ]
    )

    def call() -> Tensor:
        library.run_attention(next(ops))
        return out

    return call


def _torch_attention(config: ModelConfig, shape: Shape, query: Tensor, plain: Tensor) -> Callable[[], Tensor]:
    """On contiguous keys and values, which no server has; one token's heads of a KV head go through as rows."""
    around = itertools.cycle([plain.clone() for _ in range(num_copies(plain.nbytes))])
    scale = config.attention_scale
    if shape.num_new == 1:
        rows = query.view(shape.num_requests, config.num_kv_heads, -1, config.head_dim)

        def decode() -> Tensor:
            keys, values = next(around)
            return functional.scaled_dot_product_attention(rows, keys, values, scale=scale).view_as(query)

        return decode
    heads = query.view(shape.num_requests, shape.num_new, config.num_q_heads, config.head_dim).transpose(1, 2)
    is_whole = shape.num_new == shape.context
    seen = None if is_whole else torch.ones(shape.num_new, shape.context).tril(shape.context - shape.num_new).bool()

    def prefill() -> Tensor:
        keys, values = next(around)
        attended = functional.scaled_dot_product_attention(
            heads, keys, values, attn_mask=seen, is_causal=is_whole, scale=scale, enable_gqa=True
        )
        return attended.transpose(1, 2).reshape_as(query)

    return prefill


def _rope_store_case(library: Library, config: ModelConfig, num_tokens: int, data: str, dtype: torch.dtype) -> Case:
    q_heads, kv_heads, head_dim = config.num_q_heads, config.num_kv_heads, config.head_dim
    qkv = torch.randn(num_tokens, q_heads + 2 * kv_heads, head_dim)
    query, key = qkv[:, :q_heads].clone(), qkv[:, q_heads : q_heads + kv_heads].clone()
    value = qkv[:, q_heads + kv_heads :].to(dtype, copy=True)
    cos, sin = rope_table(config, num_tokens, torch.device("cpu"))
    positions = torch.arange(num_tokens)
    slots = torch.randperm(num_tokens) + BLOCK_SIZE
    num_blocks = -(-num_tokens // BLOCK_SIZE) + 1
    # The same memory either way; keys lie transposed in ours.
    ours = torch.zeros(num_blocks, 2, kv_heads * BLOCK_SIZE * head_dim, dtype=dtype)
    plain = torch.zeros(num_blocks, 2, kv_heads, BLOCK_SIZE, head_dim, dtype=dtype)
    op = TgRopeStore(
        qkv=qkv.data_ptr(),
        kv_cache=ours.data_ptr(),
        cos=cos.data_ptr(),
        sin=sin.data_ptr(),
        positions=positions.data_ptr(),
        slot_mapping=slots.data_ptr(),
        num_tokens=num_tokens,
        qkv_stride=qkv.stride(0),
        block_stride=ours.stride(0),
        num_q_heads=q_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=BLOCK_SIZE,
        kv_dtype=_dtype(dtype),
    )

    def run() -> Tensor:
        library.run_rope_store(op)
        return qkv[:, :q_heads]

    def run_torch() -> Tensor:
        rotated_query, rotated_key = rope(query, key, cos, sin, positions)
        store_kv(rotated_key.to(dtype), value, plain, slots)
        return rotated_query

    stored_bytes = 2 * num_tokens * config.kv_size * dtype.itemsize
    return Case(
        kernel="rope_store",
        what="rotate and store",
        rows=num_tokens,
        data=data,
        moved_bytes=qkv.nbytes + num_tokens * config.q_size * 4 + stored_bytes,
        flop=3 * num_tokens * (config.q_size + config.kv_size),
        peaks=("float32",),
        ours=run,
        torch=run_torch,
        tolerance=1e-4,
        kept=(ours, slots),
    )


def _dtype(dtype: torch.dtype) -> Dtype:
    return Dtype.BF16 if dtype is torch.bfloat16 else Dtype.F32
