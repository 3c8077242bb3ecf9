"""The decoder of the Llama family on the CPU library: one call a step, the same bits in any batch."""

from collections.abc import Iterator

import torch
from torch import Tensor

from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.packed_linear import DTYPES
from tidegate_kernels.cpu.structs import TgStep
from tidegate_server.model.config import ModelConfig
from tidegate_server.model.cpu_row_ops import cpu_row_ops
from tidegate_server.model.cpu_weights import CpuWeights
from tidegate_server.model.inputs import ModelInputs
from tidegate_server.model.kv_cache import KvCache
from tidegate_server.model.rope_table import rope_table
from tidegate_server.model.row_ops import RowOp


class CpuDecoder:
    """What `decoder.Decoder` computes, with packed weights and activations in fp32.

    A bfloat16 model keeps weights and KV cache in bfloat16, and adds up in fp32.

    Args:
        weights: packed by the same library.
        library: started.
        num_positions: the longest request, in tokens.
    """

    def __init__(self, config: ModelConfig, weights: CpuWeights, library: Library, num_positions: int) -> None:
        self._config = config
        self._library = library
        self._weights = weights
        self._num_positions = num_positions
        cos, sin = rope_table(config, num_positions, torch.device("cpu"))
        weights.model.cos, weights.model.sin = weights.vector(cos), weights.vector(sin)
        self._space = _Workspace(config, 0, weights.x_dtype)

    def forward(self, inputs: ModelInputs, kv_cache: KvCache) -> Tensor:
        """See `decoder.ForwardPass`; the logits are fp32."""
        num_tokens, num_sampled = inputs.token_ids.shape[0], inputs.sampled_rows.shape[0]
        if num_tokens > self._space.num_tokens:
            self._space = _Workspace(self._config, num_tokens, self._weights.x_dtype)
        space = self._space
        logits = torch.empty(num_sampled, self._config.vocab_size)
        step = TgStep(
            token_ids=inputs.token_ids.data_ptr(),
            positions=inputs.positions.data_ptr(),
            slot_mapping=inputs.slot_mapping.data_ptr(),
            block_table=inputs.block_table.data_ptr(),
            query_start=inputs.query_start.data_ptr(),
            context_len=inputs.context_len.data_ptr(),
            sampled_rows=inputs.sampled_rows.data_ptr(),
            kv_cache=kv_cache.blocks.data_ptr(),
            hidden=space.hidden.data_ptr(),
            normed=space.normed.data_ptr(),
            qkv=space.qkv.data_ptr(),
            attended=space.attended.data_ptr(),
            gated=space.gated.data_ptr(),
            logits=logits.data_ptr(),
            num_tokens=num_tokens,
            num_requests=inputs.context_len.shape[0],
            num_sampled=num_sampled,
            table_stride=inputs.block_table.stride(0),
            block_stride=kv_cache.blocks.stride(0),
            layer_stride=kv_cache.blocks.stride(1),
            block_size=kv_cache.blocks.shape[4],
            kv_dtype=DTYPES[kv_cache.blocks.dtype],
        )
        self._library.run_model(self._weights.model, step)
        return logits

    def row_ops(self, kv_cache: KvCache) -> Iterator[RowOp]:
        """See `decoder.ForwardPass`."""
        model, x_dtype = self._weights.model, self._weights.x_dtype
        kv_dtype, block_size = kv_cache.blocks.dtype, kv_cache.blocks.shape[4]
        return cpu_row_ops(self._library, model, x_dtype, kv_dtype, block_size, self._num_positions)


class _Workspace:
    """Activations of a step of up to `num_tokens` tokens, kept from step to step."""

    def __init__(self, config: ModelConfig, num_tokens: int, x_dtype: torch.dtype) -> None:
        self.num_tokens = num_tokens
        self.hidden = torch.empty(num_tokens, config.hidden_size)
        self.normed = torch.empty(num_tokens, config.hidden_size, dtype=x_dtype)
        self.qkv = torch.empty(num_tokens, config.q_size + 2 * config.kv_size)
        self.attended = torch.empty(num_tokens, config.q_size, dtype=x_dtype)
        self.gated = torch.empty(num_tokens, config.intermediate_size, dtype=x_dtype)
