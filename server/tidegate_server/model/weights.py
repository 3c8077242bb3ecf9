"""The decoder's tensors, and where each tensor of a checkpoint goes in them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tidegate_server.model.checkpoint import Checkpoint, check_tensors
from tidegate_server.model.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"  # not there where it is tied
FINAL_NORM = "model.norm.weight"

# Below a layer's prefix: its norms, and the modules whose weights make up each projection.
ATTENTION_NORM = "input_layernorm.weight"
MLP_NORM = "post_attention_layernorm.weight"
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
ATTENTION_OUT = ("self_attn.o_proj",)
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
DOWN = ("mlp.down_proj",)


def layer_prefix(index: int) -> str:
    """What the names of a layer's tensors begin with."""
    return f"model.layers.{index}."


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """`x @ weight + bias`; the inputs come first, the other way round from a checkpoint (see `linear.py`)."""

    weight: Tensor  # [inputs, outputs], contiguous
    bias: Tensor | None  # [outputs]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: Tensor  # [hidden]
    qkv: LinearWeights  # hidden -> q_size + 2 * kv_size: queries, keys, values
    attention_out: LinearWeights  # q_size -> hidden
    mlp_norm: Tensor  # [hidden]
    gate_up: LinearWeights  # hidden -> 2 * intermediate: gate, up
    down: LinearWeights  # intermediate -> hidden


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Tensor  # [vocab, hidden]; with a tied head a view of `head`, transposed
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    head: LinearWeights  # hidden -> vocab

    def linears(self) -> Iterator[LinearWeights]:
        """Every projection."""
        for layer in self.layers:
            yield from (layer.qkv, layer.attention_out, layer.gate_up, layer.down)
        yield self.head


def load_weights(
    checkpoint: Checkpoint, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> DecoderWeights:
    """Copy every tensor of a checkpoint into its place, as numbers.

    Raises:
        ModelNotFound: the checkpoint is damaged.
        ModelNotSupported: its tensors are not those of the config, or of a number format that is not read.
    """
    check_tensors(checkpoint, expected_shapes(config))
    weights = allocate_weights(config, dtype, device)
    for name, place in destinations(config, weights).items():
        fill(place, checkpoint.values(name))
    return weights


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Each tensor that a checkpoint of this config has, by its name in transformers."""
    places = destinations(config, allocate_weights(config, torch.float32, torch.device("meta")))
    return {name: tuple(place.shape) for name, place in places.items()}


def allocate_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> DecoderWeights:
    """Uninitialised tensors of every shape the decoder needs."""

    def vector(length: int) -> Tensor:
        return torch.empty(length, dtype=dtype, device=device)

    def linear(inputs: int, outputs: int, bias: bool) -> LinearWeights:
        weight = torch.empty(inputs, outputs, dtype=dtype, device=device)
        return LinearWeights(weight, vector(outputs) if bias else None)

    hidden, intermediate = config.hidden_size, config.intermediate_size
    layers = tuple(
        LayerWeights(
            attention_norm=vector(hidden),
            qkv=linear(hidden, config.q_size + 2 * config.kv_size, config.qkv_bias),
            attention_out=linear(config.q_size, hidden, config.out_bias),
            mlp_norm=vector(hidden),
            gate_up=linear(hidden, 2 * intermediate, config.mlp_bias),
            down=linear(intermediate, hidden, config.mlp_bias),
        )
        for _ in range(config.num_layers)
    )
    head = linear(hidden, config.vocab_size, bias=False)
    if config.tied_head:
        embedding = head.weight.t()
    else:
        embedding = torch.empty(config.vocab_size, hidden, dtype=dtype, device=device)
    return DecoderWeights(embedding=embedding, layers=layers, final_norm=vector(hidden), head=head)


def destinations(config: ModelConfig, weights: DecoderWeights) -> dict[str, Tensor]:
    """Each tensor of a checkpoint, by its name in transformers, to the view of `weights` that it fills.

    A view has the shape the checkpoint stores, so `fill(view, tensor)` transposes, fuses, converts and moves at once.
    """
    places = {EMBEDDING: weights.embedding, FINAL_NORM: weights.final_norm}
    if not config.tied_head:
        places[HEAD] = weights.head.weight.t()
    for index, layer in enumerate(weights.layers):
        prefix = layer_prefix(index)
        places[prefix + ATTENTION_NORM] = layer.attention_norm
        places[prefix + MLP_NORM] = layer.mlp_norm
        q_size, kv_size, intermediate = config.q_size, config.kv_size, config.intermediate_size
        fused = (
            (layer.qkv, QKV, (q_size, kv_size, kv_size)),
            (layer.attention_out, ATTENTION_OUT, (config.hidden_size,)),
            (layer.gate_up, GATE_UP, (intermediate, intermediate)),
            (layer.down, DOWN, (config.hidden_size,)),
        )
        for linear, names, num_outputs in fused:
            parts = _parts(linear, dict(zip(names, num_outputs, strict=True)))
            places |= {prefix + name: view for name, view in parts.items()}
    return places


def _parts(linear: LinearWeights, num_outputs: Mapping[str, int]) -> dict[str, Tensor]:
    """Cut a fused projection into the checkpoint's ones, given how many outputs each has."""
    places: dict[str, Tensor] = {}
    start = 0
    for name, length in num_outputs.items():
        places[f"{name}.weight"] = linear.weight[:, start : start + length].t()
        if linear.bias is not None:
            places[f"{name}.bias"] = linear.bias[start : start + length]
        start += length
    return places


def fill(place: Tensor, values: Tensor) -> None:
    """Copy a checkpoint's tensor into its view, converting and moving it."""
    if place.dim() == 2:
        # Both transposed: torch copies four times faster into contiguous memory than out of it.
        place.t().copy_(values.t())
    else:
        place.copy_(values)
