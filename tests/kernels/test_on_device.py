"""What only a GPU shows: the shapes of real models in bf16, full tiles, and captured graphs.

The other files of this folder run compiled as well where there is a GPU; `pytest tests/kernels` there runs all.
"""

from dataclasses import replace

import pytest
import torch

from tests.kernels.paged_step import PagedStep, Shape, paged_step
from tests.kernels.tolerances import assert_agrees
from tidegate_kernels.ops import select_ops
from tidegate_kernels.paged_attention_reference import paged_attention as paged_attention_reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
]

LLAMA_8B = Shape(num_q_heads=32, num_kv_heads=8, head_dim=128, dtype=torch.bfloat16)
SMOLLM2 = Shape(num_q_heads=9, num_kv_heads=3, head_dim=64, dtype=torch.bfloat16)
GEMMA = Shape(num_q_heads=8, num_kv_heads=4, head_dim=256, dtype=torch.bfloat16)

MIXED = [(3000, 1), (700, 700), (256, 1), (2049, 33), (1, 1), *((100 + 37 * i, 1) for i in range(40))]

shapes = pytest.mark.parametrize("shape", [LLAMA_8B, SMOLLM2, GEMMA], ids=["llama-8b", "smollm2", "gemma"])


def on(step: PagedStep, device: str) -> PagedStep:
    return replace(
        step,
        query=step.query.to(device),
        kv_cache=step.kv_cache.to(device),
        block_table=step.block_table.to(device),
        query_start=step.query_start.to(device),
        context_len=step.context_len.to(device),
    )


@shapes
def test_attention_agrees_with_the_reference(shape: Shape, device: torch.device) -> None:
    step = paged_step(MIXED, shape, device)
    actual = select_ops("cuda").paged_attention(*step.inputs)
    assert_agrees(actual, paged_attention_reference(*on(step, "cpu").inputs))


@shapes
def test_a_request_has_the_same_bits_alone_and_in_a_batch(shape: Shape, device: torch.device) -> None:
    attention = select_ops("cuda").paged_attention
    step = paged_step(MIXED, shape, device)
    together = attention(*step.inputs)
    for r in range(len(MIXED)):
        assert torch.equal(attention(*step.alone(r).inputs), together[step.queries_of(r)])


@shapes
def test_a_prompt_has_the_same_bits_however_it_is_cut(shape: Shape, device: torch.device) -> None:
    attention = select_ops("cuda").paged_attention
    step = paged_step([(1100, 1100)], shape, device)
    whole = attention(*step.inputs)
    for cut in (1, 17, 255, 256, 257, 1000, 1099):
        assert torch.equal(attention(*step.first_queries(cut).inputs), whole[:cut])
        assert torch.equal(attention(*step.last_queries(1100 - cut).inputs), whole[cut:])


@shapes
def test_a_captured_graph_serves_other_lengths(shape: Shape, device: torch.device) -> None:
    attention = select_ops("cuda").paged_attention
    step = paged_step([(500, 1), (40, 1), (300, 1)], shape, device)
    expected = attention(*step.inputs)
    lengths = step.context_len.clone()
    step.context_len.fill_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attention(*step.inputs)
    step.context_len.copy_(lengths)
    graph.replay()
    assert torch.equal(captured, expected)
