"""Attention over the paged KV cache in plain torch: the definition that the Triton kernel must agree with.

It also serves on CPU, so it is written for speed where that costs no clarity: decoding requests go through together,
prompts one after the other, and no loop runs over tokens. Its rows are exact besides: see `_attend`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

SPAN = 256
"""Keys reduced together. Part of the definition: a kernel with other spans would round differently."""

_ROW_MULTIPLE = 16
"""Query rows are padded to a multiple of this. The CPU's matrix library has kernels of its own for few rows (up to ten
for head_dim 256, measured with MKL) that sum in another order; and vectorised loops treat a ragged end differently."""

_MAX_QUERIES = 256
"""Queries of one prompt that go through together; bounds the scores' memory, and lets early queries skip late spans."""

_MAX_REQUESTS = 8
"""Decoding requests that go through together; bounds the memory that gathered keys and values take. For SmolLM2-135M
(3 KV heads of 64) 8 requests took 2.3 ms of CPU a layer at batch 16, where 2 took 3.6 (more calls), and 16 took 5 (the
gathered span falls out of the 2 MB second-level cache)."""

_HIDDEN = 1e30
"""Taken off the score of a key that a row may not see; finite, because differences of infinities are NaN."""

_LEAST_EXPONENT = -80.0
"""Exponents below are raised to it: exp(-80) vanishes beside exp(0), which every row has, and the CPU's exp takes a
path 40 times as slow where its result underflows."""


def paged_attention(
    query: Tensor, kv_cache: Tensor, block_table: Tensor, query_start: Tensor, context_len: Tensor, scale: float
) -> Tensor:
    """Causal attention of a step's new tokens to all tokens of their requests, prompts and decodes mixed.

    Query `i` of a request sits at position `context_len - num_new + i` and sees the keys up to its own position. All
    new keys and values are in the cache already. Query head `h` reads KV head `h // (num_q_heads // num_kv_heads)`.

    Keys are reduced in spans of 256 tokens from position 0: each span gives every row a maximum, a sum of
    exponentials and a weighted sum of values, and these merge in ascending order of the spans. What a span gives does
    not depend on the other spans, nor on which queries came along; so a row has the same bits however its prompt was
    cut into chunks, whatever was cached, and whoever shares the batch.

    Args:
        query: `[num_tokens, num_q_heads, head_dim]`, requests one after the other.
        kv_cache: `[num_blocks, 2, num_kv_heads, block_size, head_dim]` in the dtype of `query`, keys at index 0;
            `block_size` is a power of two. Slots that no request's tokens fill may hold anything, NaN included.
        block_table: int32 `[num_requests, max_blocks]`, block ids in position order, padded with the null block 0.
        query_start: int32 `[num_requests + 1]`; request `r` has the tokens `query_start[r]` to `query_start[r + 1]`.
        context_len: int32 `[num_requests]`, keys each request has, this step's included.
        scale: factor on the dot products, usually `head_dim ** -0.5`.

    Returns:
        A new contiguous tensor shaped and typed like `query`; scores, exponentials and sums are fp32.

    Raises:
        ValueError: the block size is no power of two, or the query heads do not divide among the KV heads.

    Source:
        Kwon et al. 2023, "PagedAttention", §4.1; Milakov and Gimelshein 2018, "Online normalizer calculation for
        softmax", for the merge.
    """
    num_q_heads, num_kv_heads, block_size = query.shape[1], kv_cache.shape[2], kv_cache.shape[3]
    if block_size & (block_size - 1):
        raise ValueError(f"block_size must be a power of two, not {block_size}")
    if num_q_heads % num_kv_heads:
        raise ValueError(f"{num_q_heads} query heads do not divide among {num_kv_heads} KV heads")

    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    group = num_q_heads // num_kv_heads
    for tile in _plan(tuple(query_start.tolist()), tuple(context_len.tolist()), group):
        scaled = query.index_select(0, tile.tokens).float() * scale
        attended = _attend(scaled, tile, kv_cache, block_table.index_select(0, tile.requests))
        out.index_copy_(0, tile.tokens, attended.to(query.dtype))
    return out


@dataclass(frozen=True, slots=True)
class _Tile:
    """Queries that go through together: the same number for each of one or more requests, longest context first."""

    requests: Tensor  # int64 [num_requests]
    tokens: Tensor  # int64 [num_requests * num_queries], rows of the queries
    num_queries: int  # of each request
    first_positions: tuple[int, ...]  # each request's position of its first query
    row_positions: Tensor  # int32 [num_requests, num_rows, 1], see `_pack`; padding rows take the last query's

    @property
    def stops(self) -> tuple[int, ...]:
        """Keys that each request's last query sees."""
        return tuple(first + self.num_queries for first in self.first_positions)


@lru_cache(maxsize=1)  # all layers of a step ask for the same plan
def _plan(query_start: tuple[int, ...], context_len: tuple[int, ...], group: int) -> tuple[_Tile, ...]:
    num_new = [stop - start for start, stop in pairwise(query_start)]
    decoding = [r for r, num in enumerate(num_new) if num == 1]
    # Longest first: the requests that still have keys in a later span are then a prefix.
    decoding.sort(key=lambda r: -context_len[r])
    tiles = []
    for i in range(0, len(decoding), _MAX_REQUESTS):
        requests = decoding[i : i + _MAX_REQUESTS]
        tokens = [query_start[r] for r in requests]
        tiles.append(_tile(requests, tokens, [context_len[r] - 1 for r in requests], num_queries=1, group=group))
    for r, num in enumerate(num_new):
        if num <= 1:  # decoding, or padding without a query
            continue
        for i in range(0, num, _MAX_QUERIES):
            num_queries = min(_MAX_QUERIES, num - i)
            tiles.append(_tile([r], [query_start[r] + i], [context_len[r] - num + i], num_queries, group))
    return tuple(tiles)


def _tile(
    requests: list[int], first_tokens: list[int], first_positions: list[int], num_queries: int, group: int
) -> _Tile:
    queries = torch.arange(num_queries)
    query_of_row = (torch.arange(_num_rows(num_queries, group)) // group).clamp_(max=num_queries - 1)
    return _Tile(
        requests=torch.tensor(requests),
        tokens=(torch.tensor(first_tokens).unsqueeze(1) + queries).flatten(),
        num_queries=num_queries,
        first_positions=tuple(first_positions),
        row_positions=(torch.tensor(first_positions).unsqueeze(1) + query_of_row).unsqueeze(2).to(torch.int32),
    )


def _attend(query: Tensor, tile: _Tile, kv_cache: Tensor, block_table: Tensor) -> Tensor:
    """Attention of one tile.

    Every matrix product has a span's 256 keys, masked where a row may not look, and at least 16 rows. So a row meets
    the same sums in the same order in a tile of any size, and decoding gives the bits that prefilling would have given.

    Args:
        query: fp32 `[num_requests * num_queries, num_q_heads, head_dim]`, already scaled.
        block_table: the tile's requests' rows.

    Returns:
        fp32, shaped like `query`.
    """
    rows = _pack(query, tile.num_queries, kv_cache.shape[2])
    stops = tile.stops
    running: _Partial | None = None
    for start in range(0, max(stops), SPAN):
        num_active = sum(stop > start for stop in stops)
        span = _gather_span(kv_cache, block_table[:num_active], start, stops[:num_active])
        visible = None
        if min(tile.first_positions[:num_active]) + 1 < start + SPAN:
            visible = torch.arange(start, start + SPAN, dtype=torch.int32) <= tile.row_positions[:num_active]
        partial = _reduce_span(rows[:, :num_active], span, visible)
        if running is None:
            running = partial
        else:
            running.merge(partial)
    assert running is not None  # every query sees its own key at least
    return _unpack(running.weighted.div_(running.total), tile.num_queries, query.shape[1])


def _num_rows(num_queries: int, group: int) -> int:
    return math.ceil(num_queries * group / _ROW_MULTIPLE) * _ROW_MULTIPLE


def _pack(query: Tensor, num_queries: int, num_kv_heads: int) -> Tensor:
    """Lay the queries of one KV head side by side: `[num_kv_heads, num_requests, num_rows, head_dim]`, zero-padded.

    Row `q * group + h` of a request is head `h` of the KV head's group, for query `q`.
    """
    num_tokens, num_q_heads, head_dim = query.shape
    num_requests, group = num_tokens // num_queries, num_q_heads // num_kv_heads
    rows = query.new_zeros(num_kv_heads, num_requests, _num_rows(num_queries, group), head_dim)
    by_kv_head = query.view(num_requests, num_queries, num_kv_heads, group, head_dim).permute(2, 0, 1, 3, 4)
    rows[:, :, : num_queries * group] = by_kv_head.reshape(num_kv_heads, num_requests, num_queries * group, head_dim)
    return rows


def _unpack(rows: Tensor, num_queries: int, num_q_heads: int) -> Tensor:
    num_kv_heads, num_requests, _, head_dim = rows.shape
    group = num_q_heads // num_kv_heads
    by_kv_head = rows[:, :, : num_queries * group].reshape(num_kv_heads, num_requests, num_queries, group, head_dim)
    return by_kv_head.permute(1, 2, 0, 3, 4).reshape(num_requests * num_queries, num_q_heads, head_dim)


def _gather_span(kv_cache: Tensor, block_table: Tensor, start: int, stops: Sequence[int]) -> Tensor:
    """Keys and values of positions `start` to `start + SPAN`, fp32 `[2, num_kv_heads, num_requests, SPAN, head_dim]`.

    Positions from `stops` on are zeroed: nobody looks there, but zero times a stale NaN would not be zero.
    """
    _, _, num_kv_heads, block_size, head_dim = kv_cache.shape
    first_block = start // block_size
    num_blocks = max(1, SPAN // block_size)
    blocks = block_table[:, first_block : first_block + num_blocks]
    if blocks.shape[1] < num_blocks:  # a table ends with its longest request, not with a span
        blocks = torch.nn.functional.pad(blocks, (0, num_blocks - blocks.shape[1]))  # with the null block
    # index_select on the permuted view writes straight into the layout that the products want, in one pass.
    gathered = kv_cache.permute(1, 2, 0, 3, 4).index_select(2, blocks.reshape(-1))
    span = gathered.view(2, num_kv_heads, len(stops), num_blocks * block_size, head_dim).float()
    if block_size > SPAN:
        span = span.narrow(3, start % block_size, SPAN)
    for r, stop in enumerate(stops):
        if stop < start + SPAN:
            span[:, :, r, stop - start :].zero_()
    return span


@dataclass(frozen=True, slots=True)
class _Partial:
    """What some spans give: softmax numbers of each row, `[num_kv_heads, num_requests, num_rows, 1 or head_dim]`."""

    maximum: Tensor  # of the scores
    total: Tensor  # sum of exp(score - maximum)
    weighted: Tensor  # sum of exp(score - maximum) * value

    def merge(self, later: "_Partial") -> None:
        """Take in the next span, in place; it may hold fewer requests (a prefix), and rows that saw none of its keys.

        Those rows keep their bits: they are multiplied by exp(0) and get zeros added.
        """
        num_active = later.maximum.shape[1]
        maximum, total, weighted = (t[:, :num_active] for t in (self.maximum, self.total, self.weighted))
        new_maximum = torch.maximum(maximum, later.maximum)
        keep = torch.exp(maximum - new_maximum)
        take = torch.exp(later.maximum - new_maximum)
        total.mul_(keep).add_(later.total * take)
        weighted.mul_(keep).add_(later.weighted * take)
        maximum.copy_(new_maximum)


def _reduce_span(rows: Tensor, span: Tensor, visible: Tensor | None) -> _Partial:
    """Reduce one span for all rows; `visible` `[num_requests, num_rows, SPAN]`, None where all rows see all keys."""
    keys, values = span
    scores = torch.matmul(rows, keys.transpose(2, 3))  # [num_kv_heads, num_requests, num_rows, SPAN]
    seen = None if visible is None else visible.float()
    if seen is not None:
        scores.add_(seen.sub(1.0).mul_(_HIDDEN))  # five times as fast as masked_fill_
    maximum = scores.amax(dim=-1, keepdim=True)
    weights = scores.sub_(maximum).clamp_(min=_LEAST_EXPONENT).exp_()
    if seen is not None:
        weights.mul_(seen)
    return _Partial(maximum, weights.sum(dim=-1, keepdim=True), torch.matmul(weights, values))
