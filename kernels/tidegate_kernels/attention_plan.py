"""How the torch reference cuts a step's attention: lengths in, tiles and passes out."""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

SPAN = 256
"""Keys reduced together. Part of the definition of attention: with other spans the results round differently."""

_MAX_QUERIES = 256
"""Queries of one prompt that go through together; bounds the scores' memory, and lets early queries skip late spans."""

_KEY_COUNTS = (64, SPAN)
"""A span that its request does not fill is read up to the next of these: keys of no weight at its end change no bit.
Torch's sum takes 64 numbers at a time and the rest in another order, hence multiples of 64; and MKL's products with 128
and 192 keys have other bits than those with 256 on some processors with AVX2, for rows that see keys past the 128th."""

_ROW_MULTIPLE = 12
"""The CPU's matrix library has kernels of its own for few rows, which sum in another order: seen with MKL on AVX-512
for fewer than 6 rows at head_dim 128, and fewer than 11 at 256. With AVX2 it takes 12 rows at a time, and the remainder
of some numbers (8, 20, 32, 76) gets other bits than the rest; multiples of 12 leave none. Not cured by it, with AVX2: a
single KV head, and head_dim 128 with up to 60 rows against 72 and more."""

_MAX_PAIRS = 8
_MAX_PAIR_ROWS = 128
"""Pairs of a request and a span that go through together: many for decoding, one for a long prompt. Eight pairs of
SmolLM2-135M (3 KV heads of 64) are 3 MB of keys and values; 16 were slower, for they fall out of the nearer caches."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Pairs of a request and a span that are reduced together."""

    requests: Tensor  # int64 [num_pairs], numbers within the tile
    span_numbers: Tensor  # int64 [num_pairs]
    spans: Tensor  # int64 [num_pairs], request * the tile's number of spans + span number
    num_keys: int  # read of each span, from its start
    short_pairs: tuple[tuple[int, int], ...]  # pairs that have fewer keys than are read, and how many
    visible: Tensor | None  # bool [num_pairs, num_rows, num_keys], which keys a row may see; None: all
    merges: tuple[tuple[slice, slice], ...]  # pairs of one span, and their requests; a request's spans ascend


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries that go through together: the same number for each of one or more requests, longest context first."""

    requests: Tensor  # int64 [num_requests]
    tokens: Tensor  # int64 [num_requests * num_queries], the queries' rows in the step
    num_queries: int  # of each request
    num_rows: int  # of each request and KV head: its queries times the group, padded
    num_spans: int  # of the longest request
    passes: tuple[Pass, ...]


@lru_cache(maxsize=1)  # all layers of a step ask for the same plan
def plan(query_start: tuple[int, ...], context_len: tuple[int, ...], group: int) -> tuple[Tile, ...]:
    """Cut a step into tiles: one or few for all decoding requests, then each prompt's.

    Args:
        query_start, context_len: as `paged_attention` takes them.
        group: query heads of a KV head.
    """
    num_new = [stop - start for start, stop in pairwise(query_start)]
    tiles = []
    # Longest first: the requests that still have keys in a later span are then a prefix.
    decoding = sorted((r for r, num in enumerate(num_new) if num == 1), key=lambda r: -context_len[r])
    if decoding:
        tokens = [query_start[r] for r in decoding]
        tiles.append(_tile(decoding, tokens, [context_len[r] - 1 for r in decoding], 1, group))
    for r, num in enumerate(num_new):
        if num <= 1:  # decoding, or padding without a query
            continue
        for i in range(0, num, _MAX_QUERIES):
            num_queries = min(_MAX_QUERIES, num - i)
            position = context_len[r] - num + i
            tiles.append(_tile([r], [query_start[r] + i], [position], num_queries, group))
    return tuple(tiles)


def _tile(
    requests: list[int],
    first_tokens: list[int],
    first_positions: list[int],
    num_queries: int,
    group: int,
) -> Tile:
    num_rows = _num_rows(num_queries * group)
    size = min(_MAX_PAIRS, max(1, _MAX_PAIR_ROWS // num_rows))
    stops = [position + num_queries for position in first_positions]
    num_spans = math.ceil(stops[0] / SPAN)
    query_of_row = (torch.arange(num_rows) // group).clamp_(max=num_queries - 1)
    row_positions = torch.tensor(first_positions).unsqueeze(1) + query_of_row  # padding rows take the last query's
    return Tile(
        requests=torch.tensor(requests),
        tokens=(torch.tensor(first_tokens).unsqueeze(1) + torch.arange(num_queries)).flatten(),
        num_queries=num_queries,
        num_rows=num_rows,
        num_spans=num_spans,
        passes=tuple(
            _pass(pairs[i : i + size], num_keys, first_positions, num_queries, num_spans, row_positions)
            for num_keys, pairs in _pairs_by_length(stops).items()
            for i in range(0, len(pairs), size)
        ),
    )


def _pairs_by_length(stops: list[int]) -> dict[int, list[tuple[int, int]]]:
    """Pairs of a request and a span by how many keys to read: full spans first, for a span's successor comes later."""
    by_length: dict[int, list[tuple[int, int]]] = {length: [] for length in reversed(_KEY_COUNTS)}
    for span in range(math.ceil(stops[0] / SPAN)):
        for request, stop in enumerate(stops):
            num_keys = min(stop - span * SPAN, SPAN)
            if num_keys > 0:
                by_length[next(count for count in _KEY_COUNTS if count >= num_keys)].append((request, span))
    return by_length


def _num_rows(num_filled: int) -> int:
    return math.ceil(num_filled / _ROW_MULTIPLE) * _ROW_MULTIPLE


def _pass(
    pairs: list[tuple[int, int]],
    num_keys: int,
    first_positions: list[int],
    num_queries: int,
    num_spans: int,
    row_positions: Tensor,
) -> Pass:
    requests = torch.tensor([request for request, _ in pairs])
    span_numbers = torch.tensor([span for _, span in pairs])
    present = [first_positions[request] + num_queries - span * SPAN for request, span in pairs]
    all_visible = all(first_positions[request] + 1 >= span * SPAN + num_keys for request, span in pairs)
    key_positions = span_numbers.unsqueeze(1) * SPAN + torch.arange(num_keys)  # [num_pairs, num_keys]
    return Pass(
        requests=requests,
        span_numbers=span_numbers,
        spans=requests * num_spans + span_numbers,
        num_keys=num_keys,
        short_pairs=tuple((pair, keys) for pair, keys in enumerate(present) if keys < num_keys),
        visible=None if all_visible else key_positions.unsqueeze(1) <= row_positions[requests].unsqueeze(2),
        merges=_merges(pairs),
    )


def _merges(pairs: list[tuple[int, int]]) -> tuple[tuple[slice, slice], ...]:
    """Runs of neighbouring requests with one span."""
    merges = []
    first = 0
    for stop in range(1, len(pairs) + 1):
        request, span = pairs[stop - 1]
        if stop == len(pairs) or pairs[stop] != (request + 1, span):
            merges.append((slice(first, stop), slice(pairs[first][0], request + 1)))
            first = stop
    return tuple(merges)
