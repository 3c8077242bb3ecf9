"""Attention over the paged KV cache in Triton: one kernel for prefill and decode, mixed in any way.

A program computes a tile: neighbouring queries of one request, times the query heads of one KV head, so that each key
read serves the whole group. Lengths are read on the device and the grid depends on shapes alone: nothing waits for
the device, and a captured graph can be replayed with other lengths.

A row's bits depend on its request alone: all tiles have one shape, the rows of a matrix product do not mix, and a span
or a part of it in which a row sees no key leaves that row as it was.
"""

import math
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from tidegate_kernels.attention_plan import SPAN


@dataclass(frozen=True, slots=True)
class TileShape:
    """What a program computes at a time; one for all launches of a model, or decode would not round as prefill does."""

    rows: int  # queries times query heads of a KV head
    keys: int  # read at a time; divides the span
    num_warps: int
    num_stages: int  # depth of the pipeline that loads keys and values ahead


def tile_shape(head_dim: int, group: int, element_bytes: int) -> TileShape:
    """The tile for a model with `group` query heads a KV head.

    The largest tiles for which the compiler spills next to nothing on sm_80, sm_90 and sm_100 and that leave room for
    two programs in sm_80's 163 KiB of shared memory; `tests/kernels/test_ahead_of_time.py` holds what it said. With 4
    warps in place of 8, bf16 at head_dim 64 spills on sm_80. Not yet timed on a device.
    """
    block_dim = padded_dim(head_dim)
    if element_bytes == 4:
        if block_dim <= 64:
            shape = TileShape(rows=32, keys=32, num_warps=8, num_stages=2)
        elif block_dim <= 128:
            shape = TileShape(rows=16, keys=32, num_warps=4, num_stages=2)
        else:
            shape = TileShape(rows=16, keys=16, num_warps=8, num_stages=2)
    elif block_dim <= 128:
        shape = TileShape(rows=64, keys=64, num_warps=8, num_stages=2)
    else:
        shape = TileShape(rows=32, keys=32, num_warps=8, num_stages=2)
    return replace(shape, rows=max(shape.rows, triton.next_power_of_2(group)))


def padded_dim(head_dim: int) -> int:
    """Columns of a tile; those past the head are masked."""
    return max(16, int(triton.next_power_of_2(head_dim)))  # a matrix product needs a power of two, 16 at least


@triton.jit
def _find_request(query_start_ptr, num_requests, tile, QUERIES: tl.constexpr):
    """The request that a tile belongs to.

    Request r's tiles start at number query_start[r] // QUERIES + r: that grows with r by as many tiles as the
    request's queries fill, or by one more, which then finds no query. So the search needs no table made by the host.
    """
    low = tl.full((), 0, tl.int32)
    high = num_requests
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start_ptr + middle) // QUERIES + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _reduce_span(
    query,
    position,
    span_start,
    span_stop,
    num_keys,
    head_cache_ptr,
    table_ptr,
    cache_block_stride,
    cache_value_stride,
    scale_log2,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """Each row's maximum, sum of exponentials and weighted sum of values over the keys of one span."""
    dims = tl.arange(0, BLOCK_DIM)
    maximum = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    weighted = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    for key_start in tl.range(span_start, span_stop, BLOCK_KEYS):
        keys = key_start + tl.arange(0, BLOCK_KEYS)
        in_context = keys < num_keys
        block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=in_context, other=0).to(tl.int64)
        cells = block * cache_block_stride + (keys % BLOCK_SIZE) * HEAD_DIM  # [BLOCK_KEYS]
        # Slots past the context may hold NaN: they are loaded as zeros, for zero times NaN is NaN.
        loaded = in_context[:, None] & (dims < HEAD_DIM)[None, :]
        cells_ptr = head_cache_ptr + cells[:, None] + dims[None, :]
        key = tl.load(cells_ptr, mask=loaded, other=0.0)  # [BLOCK_KEYS, BLOCK_DIM]
        value = tl.load(cells_ptr + cache_value_stride, mask=loaded, other=0.0)

        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale_log2  # [BLOCK_ROWS, BLOCK_KEYS]
        scores = tl.where(keys[None, :] <= position[:, None], scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        # A row that has seen no key yet keeps -inf; its differences are taken from 0, for -inf minus -inf is NaN.
        base = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(scores - base[:, None])
        keep = tl.exp2(maximum - base)
        total = total * keep + tl.sum(weights, axis=1)
        product = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        weighted = weighted * keep[:, None] + product
        maximum = new_maximum
    return maximum, total, weighted


@triton.jit(do_not_specialize=["num_requests"])  # a batch of one must not get a program of its own
def paged_attention_kernel(
    query_ptr,
    kv_cache_ptr,
    block_table_ptr,
    query_start_ptr,
    context_len_ptr,
    out_ptr,
    scale_log2,
    num_requests,
    query_token_stride,
    query_head_stride,
    out_token_stride,
    table_request_stride,
    cache_block_stride,
    cache_value_stride,
    cache_head_stride,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    QUERIES: tl.constexpr = BLOCK_ROWS // GROUP  # of a tile; rows beyond QUERIES * GROUP idle
    tile = tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    request = _find_request(query_start_ptr, num_requests, tile, QUERIES)
    first_token = tl.load(query_start_ptr + request)
    num_new = tl.load(query_start_ptr + request + 1) - first_token
    first_query = (tile - (first_token // QUERIES + request)) * QUERIES
    if first_query >= num_new:
        return

    rows = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    row_query = first_query + rows // GROUP
    row_head = kv_head * GROUP + rows % GROUP
    row_token = (first_token + row_query).to(tl.int64)  # before any stride: int32 would wrap without a word
    present = ((rows < QUERIES * GROUP) & (row_query < num_new))[:, None] & (dims < HEAD_DIM)[None, :]
    query = tl.load(
        query_ptr + row_token[:, None] * query_token_stride + row_head[:, None] * query_head_stride + dims[None, :],
        mask=present,
        other=0.0,
    )

    first_position = tl.load(context_len_ptr + request) - num_new
    position = first_position + row_query
    num_keys = first_position + tl.minimum(first_query + QUERIES, num_new)  # what the tile's last query sees
    table_ptr = block_table_ptr + request.to(tl.int64) * table_request_stride
    head_cache_ptr = kv_cache_ptr + kv_head * cache_head_stride

    maximum = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    weighted = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    for span_start in tl.range(0, num_keys, SPAN):
        span_maximum, span_total, span_weighted = _reduce_span(
            query,
            position,
            span_start,
            tl.minimum(span_start + SPAN, num_keys),
            num_keys,
            head_cache_ptr,
            table_ptr,
            cache_block_stride,
            cache_value_stride,
            scale_log2,
            BLOCK_SIZE,
            HEAD_DIM,
            BLOCK_ROWS,
            BLOCK_KEYS,
            BLOCK_DIM,
        )
        # Every row sees key 0, so from the first span on the maximum is finite.
        new_maximum = tl.maximum(maximum, span_maximum)
        keep = tl.exp2(maximum - new_maximum)
        take = tl.exp2(span_maximum - new_maximum)
        total = total * keep + span_total * take
        weighted = weighted * keep[:, None] + span_weighted * take[:, None]
        maximum = new_maximum

    out = (weighted / total[:, None]).to(out_ptr.dtype.element_ty)
    out_cells = row_token[:, None] * out_token_stride + row_head[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out_ptr + out_cells, out, mask=present)


def paged_attention(
    query: Tensor, kv_cache: Tensor, block_table: Tensor, query_start: Tensor, context_len: Tensor, scale: float
) -> Tensor:
    """See `paged_attention_reference.paged_attention`, which defines it.

    Raises:
        ValueError: shapes, dtypes or strides that the kernel does not assume.
    """
    _check(query, kv_cache, block_table, query_start, context_len)
    num_tokens, num_q_heads, head_dim = query.shape
    num_kv_heads, block_size = kv_cache.shape[2:4]
    num_requests = context_len.shape[0]
    group = num_q_heads // num_kv_heads
    shape = tile_shape(head_dim, group, query.element_size())

    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if num_tokens:
        # Full tiles of all tokens, and one begun for each request: an upper bound that only needs shapes.
        num_tiles = num_tokens // (shape.rows // group) + num_requests
        paged_attention_kernel[(num_tiles, num_kv_heads)](
            query,
            kv_cache,
            block_table,
            query_start,
            context_len,
            out,
            scale * math.log2(math.e),  # the kernel computes powers of two, which the hardware has
            num_requests,
            query.stride(0),
            query.stride(1),
            out.stride(0),
            block_table.stride(0),
            kv_cache.stride(0),
            kv_cache.stride(1),
            kv_cache.stride(2),
            BLOCK_SIZE=block_size,
            HEAD_DIM=head_dim,
            GROUP=group,
            SPAN=SPAN,
            BLOCK_ROWS=shape.rows,
            BLOCK_KEYS=shape.keys,
            BLOCK_DIM=padded_dim(head_dim),
            num_warps=shape.num_warps,
            num_stages=shape.num_stages,
            enable_fp_fusion=False,  # merging spans must round the same however the loop around it was compiled
        )
    return out


def _check(query: Tensor, kv_cache: Tensor, block_table: Tensor, query_start: Tensor, context_len: Tensor) -> None:
    num_q_heads, head_dim = query.shape[1:]
    num_requests = context_len.shape[0]
    num_kv_heads, block_size = kv_cache.shape[2:4]
    if kv_cache.shape[1:] != (2, num_kv_heads, block_size, head_dim) or kv_cache.stride()[3:] != (head_dim, 1):
        raise ValueError(
            f"kv_cache must be [num_blocks, 2, num_kv_heads, block_size, {head_dim}] with two dense last dimensions, "
            f"not {tuple(kv_cache.shape)}, strides {kv_cache.stride()}"
        )
    if block_size & (block_size - 1):
        raise ValueError(f"block_size must be a power of two, not {block_size}")
    if num_q_heads % num_kv_heads:
        raise ValueError(f"{num_q_heads} query heads do not divide among {num_kv_heads} KV heads")
    if query.dtype != kv_cache.dtype or query.stride(2) != 1:
        raise ValueError(f"query must be {kv_cache.dtype} like the cache, with a dense last dimension")
    if block_table.shape[:1] != (num_requests,) or query_start.shape != (num_requests + 1,):
        raise ValueError(
            f"block_table {tuple(block_table.shape)} and query_start {tuple(query_start.shape)} do not fit "
            f"{num_requests} requests"
        )
    if block_table.stride(1) != 1 or not query_start.is_contiguous() or not context_len.is_contiguous():
        raise ValueError("block_table, query_start and context_len must be dense")
