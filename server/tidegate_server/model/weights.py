"""The decoder's tensors, and where each tensor of a checkpoint goes in them."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tidegate_server.errors import ModelNotSupported
from tidegate_server.model.config import ModelConfig


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
    places = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.final_norm}
    if not config.tied_head:
        places["lm_head.weight"] = weights.head.weight.t()
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        places[prefix + "input_layernorm.weight"] = layer.attention_norm
        places[prefix + "post_attention_layernorm.weight"] = layer.mlp_norm
        q_size, kv_size, intermediate = config.q_size, config.kv_size, config.intermediate_size
        fused = (
            (layer.qkv, {"self_attn.q_proj": q_size, "self_attn.k_proj": kv_size, "self_attn.v_proj": kv_size}),
            (layer.attention_out, {"self_attn.o_proj": config.hidden_size}),
            (layer.gate_up, {"mlp.gate_proj": intermediate, "mlp.up_proj": intermediate}),
            (layer.down, {"mlp.down_proj": config.hidden_size}),
        )
        for linear, parts in fused:
            places |= {prefix + name: view for name, view in _parts(linear, parts).items()}
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


def check_tensors(
    source: Path,
    places: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    ignored: Collection[str] = (),
) -> None:
    """See that a checkpoint's tensors are exactly the decoder's.

    Args:
        source: for the error's words.
        places: as `destinations` gives them.
        shapes: of the checkpoint's tensors, under the same names.
        ignored: tensors that may be there and are not read.

    Raises:
        ModelNotSupported: some are missing, have another shape, or nobody knows what to do with them.
    """
    if missing := [name for name in places if name not in shapes]:
        raise ModelNotSupported(f"{source}: tensors are missing: {_listed(missing)}")
    for name, place in places.items():
        if tuple(place.shape) != shapes[name]:
            raise ModelNotSupported(
                f"{source}: tensor {name} has shape {list(shapes[name])}; the config asks for {list(place.shape)}"
            )
    if unexpected := [name for name in shapes if name not in places and name not in ignored]:
        raise ModelNotSupported(f"{source}: tensors that this decoder does not use: {_listed(unexpected)}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(sorted(names)[:3]) + more
