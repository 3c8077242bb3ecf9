"""Attention over the paged KV cache in plain torch: the definition that the Triton kernel must agree with.

It also serves on CPU, so it is written for speed where that costs no clarity: decoding requests go through together,
prompts one after the other, and no loop runs over tokens. How a step is cut is planned in `attention_plan.py`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tidegate_kernels.attention_plan import SPAN, Pass, Tile, plan

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
    for tile in plan(tuple(query_start.tolist()), tuple(context_len.tolist()), num_q_heads // num_kv_heads):
        scaled = query.index_select(0, tile.tokens).float() * scale
        attended = _attend(scaled, tile, kv_cache, block_table.index_select(0, tile.requests))
        out.index_copy_(0, tile.tokens, attended.to(query.dtype))
    return out


def _attend(query: Tensor, tile: Tile, kv_cache: Tensor, block_table: Tensor) -> Tensor:
    """Attention of one tile.

    Every matrix product takes one span's keys in their order, with a weight of zero where a row may not look, and never
    has few rows. So a row meets the same sums in the same order in a tile of any size, and decoding gives the bits that
    prefilling would have given.

    Args:
        query: fp32 `[num_requests * num_queries, num_q_heads, head_dim]`, already scaled.
        block_table: the tile's requests' rows.

    Returns:
        fp32, shaped like `query`.
    """
    rows = _pack(query, tile, kv_cache.shape[2])
    blocks = _blocks_of_spans(block_table, tile.num_spans, kv_cache.shape[3])
    running = _Partial(
        maximum=rows.new_full((*rows.shape[:3], 1), -_HIDDEN),
        total=rows.new_zeros(*rows.shape[:3], 1),
        weighted=torch.zeros_like(rows),
    )
    for step in tile.passes:
        keys, values = _gather(kv_cache, blocks, step)
        partial = _reduce(rows.index_select(1, step.requests), keys, values, step.visible)
        for pairs, requests in step.merges:
            running.take(requests).merge(partial.take(pairs))
    return _unpack(running.weighted.div_(running.total), tile, query.shape[1])


def _pack(query: Tensor, tile: Tile, num_kv_heads: int) -> Tensor:
    """Lay the queries of one KV head side by side: `[num_kv_heads, num_requests, num_rows, head_dim]`, zero-padded.

    Row `q * group + h` of a request is head `h` of the KV head's group, for query `q`.
    """
    num_tokens, num_q_heads, head_dim = query.shape
    num_requests, group = num_tokens // tile.num_queries, num_q_heads // num_kv_heads
    rows = query.new_zeros(num_kv_heads, num_requests, tile.num_rows, head_dim)
    by_kv_head = query.view(num_requests, tile.num_queries, num_kv_heads, group, head_dim).permute(2, 0, 1, 3, 4)
    num_filled = tile.num_queries * group
    rows[:, :, :num_filled] = by_kv_head.reshape(num_kv_heads, num_requests, num_filled, head_dim)
    return rows


def _unpack(rows: Tensor, tile: Tile, num_q_heads: int) -> Tensor:
    num_kv_heads, num_requests, _, head_dim = rows.shape
    group = num_q_heads // num_kv_heads
    filled = rows[:, :, : tile.num_queries * group]
    by_kv_head = filled.reshape(num_kv_heads, num_requests, tile.num_queries, group, head_dim)
    return by_kv_head.permute(1, 2, 0, 3, 4).reshape(num_requests * tile.num_queries, num_q_heads, head_dim)


def _blocks_of_spans(block_table: Tensor, num_spans: int, block_size: int) -> Tensor:
    """The blocks that hold each span, `[num_requests * num_spans, blocks of a span]`, padded with the null block."""
    if block_size > SPAN:  # several spans lie in one block
        return block_table.repeat_interleave(block_size // SPAN, dim=1)[:, :num_spans].reshape(-1, 1)
    num_columns = num_spans * (SPAN // block_size)
    # A table ends with its longest request, not with a span; and it may be wider than this tile needs.
    fitted = torch.nn.functional.pad(block_table, (0, num_columns - block_table.shape[1]))
    return fitted.reshape(-1, SPAN // block_size)


def _gather(kv_cache: Tensor, blocks: Tensor, step: Pass) -> tuple[Tensor, Tensor]:
    """Keys and values of a pass, each fp32 `[num_kv_heads * num_pairs, num_keys, head_dim]`.

    Positions that hold no key yet are zeroed: nobody looks there, but zero times a stale NaN would not be zero.
    """
    _, _, num_kv_heads, block_size, head_dim = kv_cache.shape
    num_pairs = len(step.spans)
    wanted = blocks.index_select(0, step.spans)[:, : math.ceil(step.num_keys / block_size)].flatten()
    # index_select on the permuted view writes straight into the layout that the products want, in one go.
    gathered = kv_cache.permute(1, 2, 0, 3, 4).index_select(2, wanted)
    if block_size > SPAN:  # each block holds other spans beside the pair's
        parts = gathered.view(2, num_kv_heads, num_pairs, block_size // SPAN, SPAN, head_dim)
        gathered = parts[:, :, torch.arange(num_pairs), step.span_numbers % (block_size // SPAN)]
    span = gathered.view(2, num_kv_heads, num_pairs, -1, head_dim)[:, :, :, : step.num_keys].float()
    for pair, num_present in step.short_pairs:
        span[:, :, pair, num_present:].zero_()
    keys, values = span.flatten(1, 2)
    return keys, values


@dataclass(frozen=True, slots=True)
class _Partial:
    """What some spans give each row; `[num_kv_heads, requests or pairs, num_rows, 1 or head_dim]`."""

    maximum: Tensor  # of the scores
    total: Tensor  # sum of exp(score - maximum)
    weighted: Tensor  # sum of exp(score - maximum) * value

    def take(self, some: slice) -> "_Partial":
        """A view of some requests or pairs."""
        return _Partial(self.maximum[:, some], self.total[:, some], self.weighted[:, some])

    def merge(self, later: "_Partial") -> None:
        """Take in the next span, in place.

        Rows that saw none of its keys keep their bits: they are multiplied by exp(0) and get zeros added.
        """
        maximum = torch.maximum(self.maximum, later.maximum)
        keep = torch.exp(self.maximum - maximum)
        take = torch.exp(later.maximum - maximum)
        self.total.mul_(keep).add_(later.total * take)
        self.weighted.mul_(keep).add_(later.weighted * take)
        self.maximum.copy_(maximum)


def _reduce(rows: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> _Partial:
    """Reduce each pair's span for its rows, `[num_kv_heads, num_pairs, num_rows, head_dim]`.

    `visible` `[num_pairs, num_rows, num_keys]` says which keys a row sees; None where all rows see all keys.
    """
    scores = torch.bmm(rows.flatten(0, 1), keys.transpose(1, 2)).view(*rows.shape[:3], -1)
    seen = None if visible is None else visible.float()
    if seen is not None:
        scores.add_(seen.sub(1.0).mul_(_HIDDEN))  # five times as fast as masked_fill_
    maximum = scores.amax(dim=-1, keepdim=True)
    weights = scores.sub_(maximum).clamp_(min=_LEAST_EXPONENT).exp_()
    if seen is not None:
        weights.mul_(seen)
    weighted = torch.bmm(weights.flatten(0, 1), values).view(rows.shape)
    return _Partial(maximum, weights.sum(dim=-1, keepdim=True), weighted)
