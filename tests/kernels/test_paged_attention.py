"""The Triton attention kernel against the reference, and against itself under every kind of company."""

from dataclasses import replace

import pytest
import torch
from torch.utils import deterministic

from tests.kernels.paged_step import PagedStep, Shape, paged_step
from tests.kernels.tolerances import DTYPES, assert_agrees
from tidegate_kernels.attention_plan import SPAN
from tidegate_kernels.paged_attention import paged_attention, tile_shape
from tidegate_kernels.paged_attention_reference import paged_attention as paged_attention_reference

# Tiles of one to three queries, contexts of one key, an odd number, and one off every edge of a block and of a span.
MIXED = [(1, 1), (17, 17), (16, 3), (SPAN - 1, 1), (SPAN, 2), (SPAN + 1, 33), (15, 1)]


def check(step: PagedStep) -> None:
    assert_agrees(paged_attention(*step.inputs), paged_attention_reference(*_on_cpu(step)))


def _on_cpu(step: PagedStep) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float]:
    query, kv_cache, block_table, query_start, context_len, scale = step.inputs
    return query.cpu(), kv_cache.cpu(), block_table.cpu(), query_start.cpu(), context_len.cpu(), scale


def _skip_what_the_interpreter_lacks(dtype: torch.dtype, device: torch.device) -> None:
    if dtype == torch.bfloat16 and device.type == "cpu":
        pytest.skip("Triton's interpreter multiplies bf16 matrices as if their bits were integers")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_mixed_step_agrees_with_the_reference(dtype: torch.dtype, device: torch.device) -> None:
    _skip_what_the_interpreter_lacks(dtype, device)
    check(paged_step(MIXED, Shape(dtype=dtype), device))


@pytest.mark.parametrize(
    ("num_q_heads", "num_kv_heads", "head_dim"), [(9, 3, 64), (2, 2, 80), (4, 4, 96), (7, 1, 128), (2, 1, 256)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_any_group_and_head_agrees_with_the_reference(
    num_q_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> None:
    shape = Shape(num_q_heads, num_kv_heads, head_dim, dtype=dtype)
    check(paged_step([(SPAN + 9, 1), (21, 21)], shape, device))


def test_a_group_larger_than_a_tile_makes_the_tile_larger(device: torch.device) -> None:
    group = 71
    assert tile_shape(64, group, element_bytes=4).rows == 128
    check(paged_step([(20, 3), (33, 1)], Shape(num_q_heads=group, num_kv_heads=1, head_dim=64), device))


@pytest.mark.parametrize("block_size", [1, 8, 256, 512])
def test_any_power_of_two_is_a_block_size(block_size: int, device: torch.device) -> None:
    check(paged_step([(SPAN + 20, 7), (30, 1)], Shape(block_size=block_size), device))


@pytest.mark.usefixtures("rows_multiplied_alone")
def test_a_request_has_the_same_bits_alone_and_in_a_batch(device: torch.device) -> None:
    step = paged_step(MIXED, Shape(), device)
    together = paged_attention(*step.inputs)
    for r in range(len(step.context_len)):
        assert torch.equal(paged_attention(*step.alone(r).inputs), together[step.queries_of(r)])


@pytest.mark.usefixtures("rows_multiplied_alone")
def test_a_prompt_has_the_same_bits_however_it_is_cut(device: torch.device) -> None:
    step = paged_step([(SPAN + 8, 30)], Shape(num_q_heads=3, num_kv_heads=1), device)
    whole = paged_attention(*step.inputs)
    for cut in (1, 21, 22, 23, 29):  # 22: the span's edge
        assert torch.equal(paged_attention(*step.first_queries(cut).inputs), whole[:cut])
        assert torch.equal(paged_attention(*step.last_queries(len(whole) - cut).inputs), whole[cut:])


def test_requests_without_new_tokens_are_passed_over(device: torch.device) -> None:
    check(paged_step([(20, 0), (30, 2), (40, 0), (50, 1), (60, 0)], Shape(), device))


def test_no_tokens_give_no_rows(device: torch.device) -> None:
    assert paged_attention(*paged_step([(20, 0)], Shape(), device).inputs).shape == (0, 6, 16)


def test_a_block_past_two_to_the_31_elements_is_reached(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    small = paged_step([(40, 3)], Shape(num_q_heads=4, num_kv_heads=4, head_dim=64, dtype=torch.float16), device)
    block = small.kv_cache[0].numel()
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", False)  # 4 GiB, hardly touched
    cache = torch.empty(2**31 // block + 5, *small.kv_cache.shape[1:], dtype=torch.float16, device=device)
    far = torch.tensor([len(cache) - 1, len(cache) - 2, len(cache) - 3], device=device)
    cache[far] = small.kv_cache[small.block_table[0].long()]
    query, _, _, query_start, context_len, scale = small.inputs
    actual = paged_attention(query, cache, far.to(torch.int32).unsqueeze(0), query_start, context_len, scale)
    assert_agrees(actual, paged_attention(*small.inputs))


def test_a_block_size_that_is_no_power_of_two_is_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="block_size must be a power of two, not 24"):
        paged_attention(*paged_step([(20, 1)], Shape(block_size=24), device).inputs)


def test_query_heads_that_do_not_divide_are_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="5 query heads do not divide among 2 KV heads"):
        paged_attention(*paged_step([(20, 1)], Shape(num_q_heads=5), device).inputs)


def test_a_query_of_another_dtype_is_refused(device: torch.device) -> None:
    step = paged_step([(20, 1)], Shape(), device)
    with pytest.raises(ValueError, match=r"query must be torch.float32 like the cache"):
        paged_attention(*replace(step, query=step.query.half()).inputs)


def test_lengths_that_do_not_fit_are_refused(device: torch.device) -> None:
    query, kv_cache, block_table, query_start, context_len, scale = paged_step([(20, 1)], Shape(), device).inputs
    with pytest.raises(ValueError, match="do not fit 1 requests"):
        paged_attention(query, kv_cache, block_table, query_start[:1], context_len, scale)
