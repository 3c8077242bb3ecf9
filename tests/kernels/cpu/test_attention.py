"""Attention in C against the reference, and against itself under every kind of company: same row, same bits."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils import deterministic

from tests.kernels.paged_step import LAYER, NUM_LAYERS, PagedStep, Shape, paged_step
from tests.kernels.tolerances import assert_agrees
from tidegate_kernels.attention_plan import SPAN
from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.structs import Dtype, TgAttention
from tidegate_kernels.paged_attention_reference import paged_attention as paged_attention_reference

# Contexts of one key, an odd number, and one off every edge of a block and of a span; tiles of one query and of many.
MIXED = [(1, 1), (17, 17), (16, 3), (SPAN - 1, 1), (SPAN, 2), (SPAN + 1, 33), (2 * SPAN + 90, 80), (15, 1)]
# (window in keys, soft cap): none, each, and both; the window ends within a span and begins in the one before.
MASKS = [(0, 0.0), (70, 0.0), (0, 2.0), (SPAN + 9, 1.0)]

CACHE_DTYPES = {torch.float32: Dtype.F32, torch.bfloat16: Dtype.BF16}
cache_dtypes = pytest.mark.parametrize("dtype", CACHE_DTYPES, ids=str)
masks = pytest.mark.parametrize(("window", "soft_cap"), MASKS)


def c_cache(kv_cache: Tensor) -> Tensor:
    """One layer of a cache as the C kernels lay it out, keys transposed in their block; the other layers hold NaN."""
    num_blocks = len(kv_cache)
    cache = kv_cache.new_full((num_blocks, NUM_LAYERS, 2, kv_cache[0, 0].numel()), torch.nan)
    cache[:, LAYER, 0] = kv_cache[:, 0].transpose(-1, -2).reshape(num_blocks, -1)
    cache[:, LAYER, 1] = kv_cache[:, 1].reshape(num_blocks, -1)
    return cache[:, LAYER]


def attend(
    library: Library,
    step: PagedStep,
    window: int = 0,
    soft_cap: float = 0.0,
    out_dtype: torch.dtype = torch.float32,
    cache: Tensor | None = None,
) -> Tensor:
    """What the kernel gives for a step; with `cache`, one that `c_cache` made or that is laid out like it."""
    query = step.query.float()
    if cache is None:
        cache = c_cache(step.kv_cache)
    out = torch.full(query.shape, torch.nan, dtype=out_dtype)
    library.run_attention(
        TgAttention(
            query=query.data_ptr(),
            out=out.data_ptr(),
            kv_cache=cache.data_ptr(),
            block_table=step.block_table.data_ptr(),
            query_start=step.query_start.data_ptr(),
            context_len=step.context_len.data_ptr(),
            query_stride=query.stride(0),
            out_stride=out.stride(0),
            block_stride=cache.stride(0),
            table_stride=step.block_table.stride(0),
            num_requests=len(step.context_len),
            num_q_heads=query.shape[1],
            num_kv_heads=step.kv_cache.shape[2],
            head_dim=query.shape[2],
            block_size=step.kv_cache.shape[3],
            kv_dtype=CACHE_DTYPES[cache.dtype],
            out_dtype=CACHE_DTYPES[out_dtype],
            window=window,
            scale=step.scale,
            soft_cap=soft_cap,
        )
    )
    return out


def reference(step: PagedStep) -> Tensor:
    return paged_attention_reference(
        step.query.float(), step.kv_cache.float(), step.block_table, step.query_start, step.context_len, step.scale
    )


def plain(step: PagedStep, window: int, soft_cap: float) -> Tensor:
    """Attention as it is written on paper, in fp64; the reference knows no window and no soft cap."""
    group = step.query.shape[1] // step.kv_cache.shape[2]
    rows = []
    for r, (keys, values) in enumerate(zip(step.keys, step.values, strict=True)):
        query = step.query[step.queries_of(r)].double() * step.scale
        scores = torch.einsum("qhd,khd->hqk", query, keys.double().repeat_interleave(group, dim=1))
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        key = torch.arange(len(keys))
        position = key[len(keys) - len(query) :].unsqueeze(1)
        seen = (key <= position) & (key > position - (window or len(keys)))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
        rows.append(torch.einsum("hqk,khd->qhd", weights, values.double().repeat_interleave(group, dim=1)))
    return torch.cat(rows).float()


def in_blocks_of(step: PagedStep, block_size: int) -> PagedStep:
    """The same single request in a cache of another block size."""
    keys, values = step.keys[0], step.values[0]
    num_blocks = -(-len(keys) // block_size)
    cache = torch.full((num_blocks + 1, 2, keys.shape[1], block_size, keys.shape[2]), torch.nan, dtype=keys.dtype)
    table = (torch.randperm(num_blocks) + 1).to(torch.int32).unsqueeze(0)
    position = torch.arange(len(keys))
    block, offset = table[0, position // block_size].long(), position % block_size
    cache[block, 0, :, offset] = keys
    cache[block, 1, :, offset] = values
    return replace(step, kv_cache=cache, block_table=table)


@cache_dtypes
@pytest.mark.parametrize(("num_q_heads", "num_kv_heads", "head_dim"), [(6, 2, 16), (9, 3, 64)])
def test_a_mixed_step_agrees_with_the_reference(
    library: Library, dtype: torch.dtype, num_q_heads: int, num_kv_heads: int, head_dim: int
) -> None:
    step = paged_step(MIXED, Shape(num_q_heads, num_kv_heads, head_dim, dtype=dtype))
    assert_agrees(attend(library, step), reference(step))


@cache_dtypes
@pytest.mark.parametrize("group", range(1, 9))
def test_any_number_of_rows_agrees_with_the_reference(library: Library, dtype: torch.dtype, group: int) -> None:
    step = paged_step([(SPAN + 9, 1), (21, 5)], Shape(group * 2, 2, 64, dtype=dtype))
    assert_agrees(attend(library, step), reference(step))


@cache_dtypes
@pytest.mark.parametrize("head_dim", [2, 18, 80, 96, 128, 256])
def test_any_head_agrees_with_the_reference(library: Library, dtype: torch.dtype, head_dim: int) -> None:
    step = paged_step([(SPAN + 9, 1), (21, 21)], Shape(4, 2, head_dim, dtype=dtype))
    assert_agrees(attend(library, step), reference(step))


def test_a_group_larger_than_a_tile_is_split(library: Library) -> None:
    step = paged_step([(20, 3), (33, 1)], Shape(num_q_heads=2 * 71, num_kv_heads=2, head_dim=16))
    assert_agrees(attend(library, step), reference(step))


@cache_dtypes
@masks
def test_a_window_and_a_soft_cap_are_kept_to(
    library: Library, dtype: torch.dtype, window: int, soft_cap: float
) -> None:
    step = paged_step(MIXED, Shape(head_dim=32, dtype=dtype))
    assert_agrees(attend(library, step, window, soft_cap), plain(step, window, soft_cap))


def test_large_scores_overflow_nothing(library: Library) -> None:
    step = paged_step(MIXED, Shape())
    step = replace(step, query=step.query * 300)
    # Few keys have a weight here, and how much of one depends on the last bits of a score in the hundreds.
    torch.testing.assert_close(attend(library, step), plain(step, 0, 0.0), atol=2e-3, rtol=2e-3)


def test_bfloat16_rows_are_the_fp32_rows_rounded_once(library: Library) -> None:
    step = paged_step(MIXED, Shape(head_dim=18, dtype=torch.bfloat16))
    rounded = attend(library, step, out_dtype=torch.bfloat16)
    assert torch.equal(rounded, attend(library, step).bfloat16())


@cache_dtypes
@masks
def test_a_request_has_the_same_bits_alone_and_in_a_batch(
    library: Library, dtype: torch.dtype, window: int, soft_cap: float
) -> None:
    step = paged_step(MIXED, Shape(num_q_heads=3, num_kv_heads=1, dtype=dtype))
    together = attend(library, step, window, soft_cap)
    for r in range(len(step.context_len)):
        assert torch.equal(attend(library, step.alone(r), window, soft_cap), together[step.queries_of(r)])


@cache_dtypes
@masks
def test_a_prompt_has_the_same_bits_however_it_is_cut(
    library: Library, dtype: torch.dtype, window: int, soft_cap: float
) -> None:
    length = 2 * SPAN + 50
    step = paged_step([(length, length)], Shape(num_q_heads=3, num_kv_heads=1, dtype=dtype))
    run = partial(attend, library, window=window, soft_cap=soft_cap, cache=c_cache(step.kv_cache))
    whole = run(step)
    for cut in (1, 21, 22, SPAN - 1, SPAN, SPAN + 1, 2 * SPAN + 7, length - 1):
        assert torch.equal(run(step.first_queries(cut)), whole[:cut])
        assert torch.equal(run(step.last_queries(length - cut)), whole[cut:])


@cache_dtypes
@masks
def test_decoding_gives_the_bits_of_prefilling(
    library: Library, dtype: torch.dtype, window: int, soft_cap: float
) -> None:
    length = SPAN + 40
    step = paged_step([(length, length)], Shape(num_q_heads=4, num_kv_heads=1, dtype=dtype))
    run = partial(attend, library, window=window, soft_cap=soft_cap, cache=c_cache(step.kv_cache))
    prefilled = run(step)
    decoded = [run(step.first_queries(n).last_queries(1)) for n in range(1, length + 1)]
    assert torch.equal(torch.cat(decoded), prefilled)


@cache_dtypes
@pytest.mark.parametrize("block_size", [1, 2, 8, 32, SPAN, 4 * SPAN])
def test_the_block_size_changes_no_bit(library: Library, dtype: torch.dtype, block_size: int) -> None:
    step = paged_step([(2 * SPAN + 77, 40)], Shape(head_dim=18, block_size=16, dtype=dtype))
    whole = attend(library, step)
    assert_agrees(whole, reference(step))
    assert torch.equal(attend(library, in_blocks_of(step, block_size)), whole)


def test_the_number_of_threads_changes_no_bit(library: Library) -> None:
    step = paged_step(MIXED, Shape(9, 3, 64))
    on_two = attend(library, step)
    library.start(library.isa(), num_threads=1, cpus=None)
    assert torch.equal(attend(library, step), on_two)


@cache_dtypes
def test_every_instruction_set_gives_the_same_bits(loaded: Library, dtype: torch.dtype) -> None:
    step = paged_step(MIXED, Shape(9, 3, 64, dtype=dtype))
    rows = []
    for isa in loaded.supported_isas():
        loaded.start(isa, num_threads=1, cpus=None)
        rows.append(attend(loaded, step, window=300, soft_cap=20.0))
    loaded.stop()
    assert all(torch.equal(other, rows[0]) for other in rows)


def test_a_query_of_nan_spoils_its_own_row_only(library: Library) -> None:
    step = paged_step([(SPAN + 30, 40)], Shape())
    whole = attend(library, step)
    query = step.query.clone()
    query[7, 3, 2] = torch.nan
    spoilt = attend(library, replace(step, query=query))
    assert spoilt[7, 3].isnan().all()
    spoilt[7, 3] = whole[7, 3]
    assert torch.equal(spoilt, whole)


@pytest.mark.parametrize("stale", [torch.inf, -torch.inf, 1e38], ids=str)
def test_stale_slots_change_no_bit(library: Library, stale: float) -> None:
    step = paged_step([(SPAN + 5, 7), (3, 1)], Shape())  # holds NaN where it holds nothing
    assert torch.equal(
        attend(library, replace(step, kv_cache=step.kv_cache.nan_to_num(nan=stale))), attend(library, step)
    )


def test_requests_without_new_tokens_are_passed_over(library: Library) -> None:
    step = paged_step([(20, 0), (30, 2), (40, 0), (50, 1), (60, 0)], Shape())
    assert_agrees(attend(library, step), reference(step))


def test_no_tokens_give_no_rows(library: Library) -> None:
    assert attend(library, paged_step([(20, 0)], Shape())).shape == (0, 6, 16)


def test_a_block_past_two_to_the_31_elements_is_reached(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    small = paged_step([(40, 3)], Shape(num_q_heads=4, num_kv_heads=4, head_dim=64, dtype=torch.bfloat16))
    near = c_cache(small.kv_cache)
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", False)  # 4 GiB, hardly touched
    cache = torch.empty(2**31 // near[0].numel() + 5, *near.shape[1:], dtype=near.dtype)
    far = torch.tensor([len(cache) - 1, len(cache) - 2, len(cache) - 3])
    cache[far] = near[small.block_table[0].long()]
    moved = replace(small, block_table=far.to(torch.int32).unsqueeze(0))
    assert torch.equal(attend(library, moved, cache=cache), attend(library, small, cache=near))
