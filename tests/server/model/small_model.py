"""A folder with a small random model, as `load_runner` takes it."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from tests.server.model.gguf_writing import small_tensors

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}


def write_small_model(folder: Path, tensors: dict[str, Tensor] | None = None) -> Path:
    """Write configuration and weights, random ones where none are given; gives the folder."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(small_tensors() if tensors is None else tensors, folder / "model.safetensors")
    return folder
