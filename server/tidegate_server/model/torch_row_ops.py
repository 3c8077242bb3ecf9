"""What `decoder.Decoder` computes on rows, op by op, for the exactness probe."""

from collections.abc import Iterator

import torch
from torch import Tensor

from tidegate_kernels.ops import Ops
from tidegate_server.model.config import ModelConfig
from tidegate_server.model.linear import RowPlan, linear
from tidegate_server.model.row_ops import (
    ATTENTION_ROWS,
    CONTEXT_LEN,
    HEAD_ROWS,
    MANY_ROWS,
    ROWS,
    RowOp,
    as_requests,
    num_blocks,
    random_rows,
)
from tidegate_server.model.weights import DecoderWeights, LinearWeights


def torch_row_ops(
    config: ModelConfig,
    weights: DecoderWeights,
    ops: Ops,
    row_plan: RowPlan,
    rope_tables: tuple[Tensor, Tensor],
    block_size: int,
) -> Iterator[RowOp]:
    """One for each op, of products one for each shape; in the order of a layer."""
    like = weights.final_norm
    # On a CPU without units for the shorter formats, torch would take a minute for the many rows of a small model.
    is_slow = like.device.type == "cpu" and like.dtype != torch.float32
    yield _norm(config, ops, like)
    yield _rope_and_store(config, ops, rope_tables, block_size, like)
    yield _attention(config, ops, block_size, like)
    yield _silu_mul(config, ops, like)
    for name, weight in _linears(weights).items():
        yield _product(name, weight, row_plan, ROWS if is_slow else MANY_ROWS)
    yield _product(_shaped("head", weights.head), weights.head, row_plan, HEAD_ROWS)


def _linears(weights: DecoderWeights) -> dict[str, LinearWeights]:
    named: dict[str, LinearWeights] = {}
    for layer in weights.layers:
        for role, weight in (
            ("qkv", layer.qkv),
            ("attention_out", layer.attention_out),
            ("gate_up", layer.gate_up),
            ("down", layer.down),
        ):
            named.setdefault(_shaped(role, weight), weight)
    return named


def _shaped(role: str, weight: LinearWeights) -> str:
    num_inputs, num_outputs = weight.weight.shape
    return f"{role} {num_inputs}x{num_outputs}"


def _product(name: str, weight: LinearWeights, row_plan: RowPlan, num_rows: int) -> RowOp:
    x = random_rows(num_rows, weight.weight.shape[0]).to(weight.weight)
    return RowOp(name, num_rows, lambda rows: linear(x[rows], weight, row_plan))


def _norm(config: ModelConfig, ops: Ops, weight: Tensor) -> RowOp:
    x = random_rows(MANY_ROWS, config.hidden_size).to(weight)
    return RowOp(
        f"rms_norm {config.hidden_size}", MANY_ROWS, lambda rows: ops.rms_norm(x[rows], weight, config.rms_norm_eps)
    )


def _silu_mul(config: ModelConfig, ops: Ops, like: Tensor) -> RowOp:
    x = random_rows(MANY_ROWS, 2 * config.intermediate_size).to(like)
    return RowOp(f"silu_mul {config.intermediate_size}", MANY_ROWS, lambda rows: ops.silu_mul(x[rows]))


def _rope_and_store(
    config: ModelConfig, ops: Ops, rope_tables: tuple[Tensor, Tensor], block_size: int, like: Tensor
) -> RowOp:
    cos, sin = rope_tables
    heads = random_rows(ROWS, config.num_q_heads + 2 * config.num_kv_heads, config.head_dim).to(like)
    query, key, value = torch.split(heads, [config.num_q_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
    cache = _cache(config, block_size, ROWS).to(like)
    slots = torch.arange(ROWS, device=like.device) + block_size  # the null block comes first
    positions = torch.arange(ROWS, device=like.device) % cos.shape[0]

    def run(rows: list[int]) -> Tensor:
        rotated, rotated_key = ops.rope(query[rows], key[rows], cos, sin, positions[rows])
        ops.store_kv(rotated_key, value[rows], cache, slots[rows])
        stored = cache[slots[rows] // block_size, :, :, slots[rows] % block_size]
        return torch.cat((rotated.flatten(1), stored.flatten(1)), dim=1)

    return RowOp(f"rope and store_kv {config.head_dim}", ROWS, run)


def _attention(config: ModelConfig, ops: Ops, block_size: int, like: Tensor) -> RowOp:
    query = random_rows(ATTENTION_ROWS, config.num_q_heads, config.head_dim).to(like)
    cache = _cache(config, block_size, CONTEXT_LEN).to(like)

    def run(rows: list[int]) -> Tensor:
        requests = as_requests(rows, block_size)
        return ops.paged_attention(
            query[rows],
            cache,
            requests.block_table.to(like.device),
            requests.query_start.to(like.device),
            requests.context_len.to(like.device),
            config.attention_scale,
        )

    return RowOp(_attention_name(config), ATTENTION_ROWS, run)


def _attention_name(config: ModelConfig) -> str:
    return f"attention {config.num_q_heads}/{config.num_kv_heads} heads of {config.head_dim}"


def _cache(config: ModelConfig, block_size: int, num_tokens: int) -> Tensor:
    """One layer's, for so many tokens, full of numbers."""
    return random_rows(num_blocks(num_tokens, block_size) + 1, 2, config.num_kv_heads, block_size, config.head_dim)
