"""The torch reference against attention written out plainly, and against itself under every kind of company."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.paged_step import PagedStep, Shape, paged_step
from tests.kernels.tolerances import DTYPES, assert_agrees
from tidegate_kernels.attention_plan import SPAN
from tidegate_kernels.paged_attention_reference import paged_attention

SMOLLM2 = Shape(num_q_heads=9, num_kv_heads=3, head_dim=64)

MIXED = [(1, 1), (SPAN + 44, 1), (17, 17), (SPAN, SPAN), (2 * SPAN + 1, 1), (SPAN + 1, 40), (SPAN - 1, 3), (90, 1)]


def plain_attention(step: PagedStep) -> Tensor:
    """Softmax over all keys at once, one request at a time, in fp64."""
    out = torch.empty(step.query.shape, dtype=torch.float64)
    group = step.query.shape[1] // step.kv_cache.shape[2]
    for r, (keys, values) in enumerate(zip(step.keys, step.values, strict=True)):
        query = step.query[step.queries_of(r)].double()
        keys = keys.double().repeat_interleave(group, dim=1)
        values = values.double().repeat_interleave(group, dim=1)
        later = torch.ones(len(query), len(keys)).triu(len(keys) - len(query) + 1).bool()
        scores = torch.einsum("qhd,khd->hqk", query, keys) * step.scale
        weights = scores.masked_fill(later, -torch.inf).softmax(dim=-1)
        out[step.queries_of(r)] = torch.einsum("hqk,khd->qhd", weights, values)
    return out.to(step.query.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_mixed_step_is_plain_attention(dtype: torch.dtype) -> None:
    step = paged_step(MIXED, Shape(dtype=dtype))
    assert_agrees(paged_attention(*step.inputs), plain_attention(step))


@pytest.mark.parametrize("block_size", [1, 8, 32, 256, 512])
def test_any_power_of_two_is_a_block_size(block_size: int) -> None:
    step = paged_step([(600, 70), (513, 1), (30, 1)], Shape(block_size=block_size))
    assert_agrees(paged_attention(*step.inputs), plain_attention(step))


@pytest.mark.parametrize(("num_q_heads", "num_kv_heads", "head_dim"), [(1, 1, 8), (7, 1, 80), (4, 4, 96), (8, 2, 256)])
def test_any_group_and_head_is_served(num_q_heads: int, num_kv_heads: int, head_dim: int) -> None:
    step = paged_step([(SPAN + 5, 21), (40, 1)], Shape(num_q_heads, num_kv_heads, head_dim))
    assert_agrees(paged_attention(*step.inputs), plain_attention(step))


@pytest.mark.parametrize("shape", [Shape(), SMOLLM2, Shape(4, 1, 128), Shape(2, 2, 256)], ids=str)
def test_a_request_has_the_same_bits_alone_and_in_a_batch(shape: Shape) -> None:
    step = paged_step(MIXED + [(250 + 7 * i, 1) for i in range(9)], shape)
    together = paged_attention(*step.inputs)
    for r in range(len(step.context_len)):
        assert torch.equal(paged_attention(*step.alone(r).inputs), together[step.queries_of(r)])


@pytest.mark.parametrize("shape", [Shape(), SMOLLM2, Shape(4, 1, 128), Shape(2, 2, 256)], ids=str)
def test_a_prompt_has_the_same_bits_however_it_is_cut(shape: Shape) -> None:
    if shape.num_kv_heads == 1 and torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("a product of one request and one KV head is split among threads by its rows; seen with AVX2")
    step = paged_step([(2 * SPAN + 90, 2 * SPAN + 90)], shape)
    whole = paged_attention(*step.inputs)
    for cut in (1, 15, SPAN - 1, SPAN, SPAN + 1, 2 * SPAN + 89):
        assert torch.equal(paged_attention(*step.first_queries(cut).inputs), whole[:cut])
        assert torch.equal(paged_attention(*step.last_queries(len(whole) - cut).inputs), whole[cut:])


def test_decoding_gives_the_bits_that_prefilling_would() -> None:
    step = paged_step([(SPAN + 20, SPAN + 20)], SMOLLM2)
    whole = paged_attention(*step.inputs)
    for position in range(SPAN + 20):
        decoded = paged_attention(*step.first_queries(position + 1).last_queries(1).inputs)
        assert torch.equal(decoded, whole[position : position + 1])


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_the_number_of_threads_changes_no_bit(num_threads: int) -> None:
    step = paged_step(MIXED, SMOLLM2)
    expected = paged_attention(*step.inputs)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        assert torch.equal(paged_attention(*step.inputs), expected)
    finally:
        torch.set_num_threads(before)


@settings(deadline=None, max_examples=15)
@given(
    requests=st.lists(st.tuples(st.integers(1, 2 * SPAN + 2), st.integers(1, 40)), min_size=1, max_size=8),
    block_size=st.sampled_from([4, 16, 64]),
)
def test_no_batch_mate_changes_a_bit(requests: list[tuple[int, int]], block_size: int) -> None:
    step = paged_step([(max(length, new), new) for length, new in requests], Shape(block_size=block_size))
    together = paged_attention(*step.inputs)
    assert not together.isnan().any()
    for r in range(len(requests)):
        assert torch.equal(paged_attention(*step.alone(r).inputs), together[step.queries_of(r)])


def test_scores_far_apart_pick_the_best_key_and_stay_numbers() -> None:
    step = paged_step([(SPAN + 3, 5), (2 * SPAN, 1)], Shape())
    step.query.mul_(1e6)
    out = paged_attention(*step.inputs)
    chosen = (out[-1, 0] - step.values[1][:, 0]).abs().amax(dim=-1)  # distance to each key's value
    assert chosen.min() < 1e-6
    assert out.isfinite().all()


def test_a_request_without_new_tokens_is_passed_over() -> None:
    step = paged_step([(20, 0), (30, 2), (40, 0)], Shape())
    assert_agrees(paged_attention(*step.inputs), plain_attention(step))


def test_no_tokens_give_no_rows() -> None:
    step = paged_step([(20, 0)], Shape())
    assert paged_attention(*step.inputs).shape == (0, 6, 16)


def test_a_block_size_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size must be a power of two, not 24"):
        paged_attention(*paged_step([(20, 1)], Shape(block_size=24)).inputs)


def test_query_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="5 query heads do not divide among 2 KV heads"):
        paged_attention(*paged_step([(20, 1)], Shape(num_q_heads=5)).inputs)
