"""Writes small GGUF files with llama.cpp's own conventions, for tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import quantize

from tidegate_server.model.gguf_weights import NAMES

HF_TO_GGUF = {theirs: ours for ours, theirs in NAMES.items()}

SMALL: dict[str, Any] = {
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 64,
    "block_count": 2,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10_000.0,
}
VOCAB_SIZE = 40


def small_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights of a model of SMALL's sizes, under transformers' names."""
    generator = torch.Generator().manual_seed(seed)
    hidden, intermediate = SMALL["embedding_length"], SMALL["feed_forward_length"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB_SIZE, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (VOCAB_SIZE, hidden),
    }
    for layer in range(SMALL["block_count"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (hidden, hidden),
            prefix + "self_attn.k_proj.weight": (hidden // 2, hidden),
            prefix + "self_attn.v_proj.weight": (hidden // 2, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, hidden),
            prefix + "mlp.gate_proj.weight": (intermediate, hidden),
            prefix + "mlp.up_proj.weight": (intermediate, hidden),
            prefix + "mlp.down_proj.weight": (hidden, intermediate),
        }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def gguf_name(name: str) -> str:
    *modules, kind = name.split(".")
    if modules[:2] == ["model", "layers"]:
        return f"blk.{modules[2]}.{HF_TO_GGUF['.'.join(modules[3:])]}.{kind}"
    return f"{HF_TO_GGUF['.'.join(modules)]}.{kind}"


def permuted(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """What llama.cpp's converter does to the rows of query and key projections."""
    head_dim = weight.shape[0] // num_heads
    halves = weight.reshape(num_heads, 2, head_dim // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    tensors: dict[str, torch.Tensor],
    fields: dict[str, Any] | None = None,
    architecture: str = "llama",
    quantisation: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    others: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """Write a file; matrices in the given quantisation, vectors in fp32; a field of None is left out.

    Args:
        others: module names, such as `v_proj`, of matrices in another quantisation.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (SMALL | (fields or {})).items():
        name = key if key.startswith(("tokenizer.", "general.")) else f"{architecture}.{key}"
        match value:
            case None:
                pass
            case int():
                writer.add_uint32(name, value)
            case float():
                writer.add_float32(name, value)
            case str():
                writer.add_string(name, value)
            case list():
                writer.add_array(name, value)
            case _:
                raise TypeError(f"no GGUF type for {value!r}")
    heads = {"q_proj": SMALL["attention.head_count"], "k_proj": SMALL["attention.head_count_kv"]}
    for name, tensor in tensors.items():
        module = name.split(".")[-2] if "." in name else ""
        stored = permuted(tensor, heads[module]) if module in heads else tensor
        values = stored.numpy().astype(np.float32)
        if tensor.dim() == 1:
            writer.add_tensor(gguf_name(name) if name.startswith("model.") else name, values)
        else:
            kind = (others or {}).get(module, quantisation)
            writer.add_tensor(gguf_name(name), quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
