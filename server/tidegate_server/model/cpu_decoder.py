"""The decoder of the Llama family on the CPU library: one call a step, the same bits in any batch."""

from ctypes import pointer

import torch
from torch import Tensor

from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.packed_linear import PackedLinear, pack_linear
from tidegate_kernels.cpu.structs import Dtype, Packing, TgArgmax, TgLayer, TgModel, TgStep
from tidegate_server.model.config import ModelConfig
from tidegate_server.model.inputs import ModelInputs
from tidegate_server.model.kv_cache import KvCache
from tidegate_server.model.rope_table import rope_table
from tidegate_server.model.weights import DecoderWeights, LinearWeights

SUPPORTED_DTYPES = (torch.float32, torch.bfloat16)


class CpuDecoder:
    """What `decoder.Decoder` computes, with weights packed once and activations in fp32.

    Packing takes the weights over: each one's memory is given back as soon as its packed copy is there, so that a model
    never lies in memory twice. A bfloat16 model keeps weights and KV cache in bfloat16, and adds up in fp32.

    Args:
        library: started.
        num_positions: the longest request, in tokens.
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights, library: Library, num_positions: int) -> None:
        self._config = config
        self._library = library
        dtype = weights.final_norm.dtype
        assert dtype in SUPPORTED_DTYPES, f"the CPU library has no {dtype}"
        self._packing = _choose_packing(library, dtype, config)
        # What products read: pairs of bfloat16 are multiplied by pairs of bfloat16.
        self._x_dtype = torch.bfloat16 if self._packing is Packing.BF16_PAIRS else torch.float32
        self._kept: list[object] = []  # memory that the structs point to
        # A tied embedding is a view of the head, which packing gives back: read from the packed head instead.
        self._embedding = None if config.tied_head else weights.embedding
        self._model = self._packed_model(weights, num_positions)
        self._space = _Workspace(config, 0, self._x_dtype)

    def forward(self, inputs: ModelInputs, kv_cache: KvCache) -> Tensor:
        """See `decoder.ForwardPass`; the logits are fp32."""
        num_tokens, num_sampled = inputs.token_ids.shape[0], inputs.sampled_rows.shape[0]
        if num_tokens > self._space.num_tokens:
            self._space = _Workspace(self._config, num_tokens, self._x_dtype)
        space = self._space
        if self._embedding is not None:
            space.hidden[:num_tokens] = self._embedding[inputs.token_ids]
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
            kv_dtype=_dtype(kv_cache.blocks.dtype),
        )
        self._library.run_model(self._model, step)
        return logits

    def argmax(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See `sampler.Argmax`."""
        num_rows, num_columns = rows.shape
        maximum, index = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int64)
        self._library.run_argmax(
            TgArgmax(
                x=rows.data_ptr(),
                index=index.data_ptr(),
                maximum=maximum.data_ptr(),
                m=num_rows,
                n=num_columns,
                x_stride=rows.stride(0),
            )
        )
        return maximum, index

    def _packed_model(self, weights: DecoderWeights, num_positions: int) -> TgModel:
        config = self._config
        layers = [
            TgLayer(
                attention_norm=self._vector(layer.attention_norm),
                mlp_norm=self._vector(layer.mlp_norm),
                qkv=self._packed(layer.qkv).struct,
                attention_out=self._packed(layer.attention_out).struct,
                gate_up=self._packed(layer.gate_up, is_halved=True).struct,
                down=self._packed(layer.down).struct,
            )
            for layer in weights.layers
        ]
        cos, sin = rope_table(config, num_positions, torch.device("cpu"))
        return TgModel(
            layers=(TgLayer * len(layers))(*layers),
            head=pointer(self._packed(weights.head).struct),
            final_norm=self._vector(weights.final_norm),
            cos=self._vector(cos),
            sin=self._vector(sin),
            num_layers=len(layers),
            hidden_size=config.hidden_size,
            num_q_heads=config.num_q_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            is_tied=config.tied_head,
            x_dtype=_dtype(self._x_dtype),
            eps=config.rms_norm_eps,
            scale=config.attention_scale,
        )

    def _vector(self, values: Tensor) -> int:
        fp32 = values.float().contiguous()
        self._kept.append(fp32)
        return fp32.data_ptr()

    def _packed(self, weights: LinearWeights, *, is_halved: bool = False) -> PackedLinear:
        packed = pack_linear(self._library, weights.weight, weights.bias, self._packing, is_halved=is_halved)
        weights.weight.untyped_storage().resize_(0)
        self._kept.append(packed)
        return packed


class _Workspace:
    """Activations of a step of up to `num_tokens` tokens, kept from step to step."""

    def __init__(self, config: ModelConfig, num_tokens: int, x_dtype: torch.dtype) -> None:
        self.num_tokens = num_tokens
        self.hidden = torch.empty(num_tokens, config.hidden_size)
        self.normed = torch.empty(num_tokens, config.hidden_size, dtype=x_dtype)
        self.qkv = torch.empty(num_tokens, config.q_size + 2 * config.kv_size)
        self.attended = torch.empty(num_tokens, config.q_size, dtype=x_dtype)
        self.gated = torch.empty(num_tokens, config.intermediate_size, dtype=x_dtype)


def _choose_packing(library: Library, dtype: torch.dtype, config: ModelConfig) -> Packing:
    if dtype == torch.float32:
        return Packing.F32
    num_inputs = (config.hidden_size, config.q_size, config.intermediate_size)
    if library.isa() == "avx512bf16" and all(num % 2 == 0 for num in num_inputs):
        return Packing.BF16_PAIRS
    return Packing.BF16


def _dtype(dtype: torch.dtype) -> Dtype:
    return Dtype.BF16 if dtype == torch.bfloat16 else Dtype.F32
