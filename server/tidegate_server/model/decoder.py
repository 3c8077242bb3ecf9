"""The decoder of the Llama family: token ids and a KV cache to logits."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from tidegate_kernels.ops import Ops
from tidegate_server.model.config import ModelConfig
from tidegate_server.model.inputs import ModelInputs
from tidegate_server.model.kv_cache import KvCache
from tidegate_server.model.linear import RowPlan, linear
from tidegate_server.model.rope_table import rope_table
from tidegate_server.model.row_ops import RowOp
from tidegate_server.model.torch_row_ops import torch_row_ops
from tidegate_server.model.weights import DecoderWeights, LayerWeights, LinearWeights


class ForwardPass(Protocol):
    """A model ready to compute steps; what it stores in the KV cache is its own affair."""

    def forward(self, inputs: ModelInputs, kv_cache: KvCache) -> Tensor:
        """Compute a step: writes the new tokens' keys and values, and gives logits of the rows that draw.

        Returns:
            `[len(inputs.sampled_rows), vocab_size]`.
        """
        ...

    def row_ops(self, kv_cache: KvCache) -> Iterator[RowOp]:
        """What a step does to rows, op by op, in memory of their own that lies as `kv_cache` does."""
        ...


class Decoder:
    """Pre-norm blocks of attention and gated feed-forward; the same code on every device.

    Args:
        num_positions: the longest request, in tokens.
    """

    def __init__(
        self, config: ModelConfig, weights: DecoderWeights, ops: Ops, row_plan: RowPlan, num_positions: int
    ) -> None:
        self._config = config
        self._weights = weights
        self._ops = ops
        self._row_plan = row_plan
        self._cos, self._sin = rope_table(config, num_positions, weights.final_norm.device)

    def forward(self, inputs: ModelInputs, kv_cache: KvCache) -> Tensor:
        """See `ForwardPass`; the logits are in the weights' dtype."""
        hidden = self._weights.embedding[inputs.token_ids]
        for layer, layer_cache in zip(self._weights.layers, kv_cache.layers, strict=True):
            hidden = hidden + self._attention(layer, self._norm(hidden, layer.attention_norm), inputs, layer_cache)
            hidden = hidden + self._feed_forward(layer, self._norm(hidden, layer.mlp_norm))
        rows = hidden[inputs.sampled_rows]
        if rows.shape[0] == 0:  # chunks of prompts only: nothing is drawn in this step
            return rows.new_empty(0, self._config.vocab_size)
        return self._linear(self._norm(rows, self._weights.final_norm), self._weights.head)

    def row_ops(self, kv_cache: KvCache) -> Iterator[RowOp]:
        """See `ForwardPass`."""
        block_size = kv_cache.blocks.shape[4]
        tables = self._cos, self._sin
        return torch_row_ops(self._config, self._weights, self._ops, self._row_plan, tables, block_size)

    def _attention(self, layer: LayerWeights, x: Tensor, inputs: ModelInputs, layer_cache: Tensor) -> Tensor:
        config = self._config
        num_tokens = x.shape[0]
        sizes = [config.q_size, config.kv_size, config.kv_size]
        query, key, value = torch.split(self._linear(x, layer.qkv), sizes, dim=-1)
        query = query.view(num_tokens, config.num_q_heads, config.head_dim)
        key = key.view(num_tokens, config.num_kv_heads, config.head_dim)
        value = value.view(num_tokens, config.num_kv_heads, config.head_dim)

        query, key = self._ops.rope(query, key, self._cos, self._sin, inputs.positions)
        self._ops.store_kv(key, value, layer_cache, inputs.slot_mapping)
        attended = self._ops.paged_attention(
            query, layer_cache, inputs.block_table, inputs.query_start, inputs.context_len, config.attention_scale
        )
        return self._linear(attended.view(num_tokens, config.q_size), layer.attention_out)

    def _feed_forward(self, layer: LayerWeights, x: Tensor) -> Tensor:
        return self._linear(self._ops.silu_mul(self._linear(x, layer.gate_up)), layer.down)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._ops.rms_norm(x, weight, self._config.rms_norm_eps)

    def _linear(self, x: Tensor, weights: LinearWeights) -> Tensor:
        return linear(x, weights, self._row_plan)
