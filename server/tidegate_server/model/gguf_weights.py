"""A GGUF file's tensors, de-quantised or as they are."""

import math
import re

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from tidegate_kernels.cpu.packed_linear import QuantizedRows
from tidegate_kernels.cpu.structs import Packing
from tidegate_server.errors import ModelNotSupported
from tidegate_server.gguf_file import GgufFile, GgufTensor
from tidegate_server.model.config import ModelConfig

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""What llama.cpp calls a module, to what transformers calls it."""

PACKINGS = {
    GGMLQuantizationType.Q8_0: Packing.Q8_0,
    GGMLQuantizationType.Q4_0: Packing.Q4_0,
    GGMLQuantizationType.Q4_1: Packing.Q4_1,
    GGMLQuantizationType.Q4_K: Packing.Q4_K,
    GGMLQuantizationType.Q6_K: Packing.Q6_K,
}
"""Types that the CPU kernels compute with as they are."""

GROUP_VALUES = 1 << 18
"""Values that the gguf library should de-quantise together: it works through groups of 16 rows, whose overhead shows on
short rows and whose temporaries leave the cache on long ones. SmolLM2-135M takes 0.95 s of CPU time with its rows as
they are, 0.62 s with this, 0.98 s with 16 times this."""
ROWS_PER_GROUP = 16

READ_WITH_THE_CONFIG = ("rope_freqs.weight",)

_TENSOR_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<module>\w+)\.(?P<kind>weight|bias)")


class GgufCheckpoint:
    """Satisfies `checkpoint.Checkpoint`."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self._config = config
        self._tensors = {transformers_name(name): tensor for name, tensor in file.tensors.items()}
        self.path = file.path
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        self.ignored = READ_WITH_THE_CONFIG

    def values(self, name: str) -> Tensor:
        """See `Checkpoint.values`; de-quantised to fp32."""
        return self._in_order(name, torch.from_numpy(_dequantised(self._file, self._tensors[name])))

    def packing(self, name: str) -> Packing | None:
        """See `Checkpoint.packing`."""
        return PACKINGS.get(self._tensors[name].type)

    def quantized(self, name: str) -> QuantizedRows:
        """See `Checkpoint.quantized`."""
        tensor = self._tensors[name]
        num_outputs, num_inputs = tensor.shape
        raw = np.frombuffer(self._file.tensor_bytes(tensor), dtype=np.uint8).reshape(num_outputs, -1)
        return QuantizedRows(self._in_order(name, torch.from_numpy(raw)), PACKINGS[tensor.type], num_inputs)

    def _in_order(self, name: str, rows: Tensor) -> Tensor:
        num_heads = _num_rotated_heads(name, self._config)
        return undo_rotary_permutation(rows, num_heads) if num_heads else rows


def transformers_name(name: str) -> str:
    """The name that transformers gives a tensor; a name of no known form stays as it is."""
    match = _TENSOR_NAME.fullmatch(name)
    if match is None or match["module"] not in NAMES:
        return name
    layer = f"model.layers.{match['layer']}." if match["layer"] else ""
    return f"{layer}{NAMES[match['module']]}.{match['kind']}"


def undo_rotary_permutation(values: Tensor, num_heads: int) -> Tensor:
    """Put the rows of a query or key projection back into transformers' order.

    llama.cpp rotates neighbouring dimensions of a head, transformers dimension `i` with `i + head_dim // 2`; its
    converter interleaves the two halves of each head's rows to make up for it.

    Args:
        values: `[num_heads * head_dim, ...]`, a weight, quantised or not, or a bias.
    """
    head_dim = values.shape[0] // num_heads
    return values.view(num_heads, head_dim // 2, 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)


def _num_rotated_heads(name: str, config: ModelConfig) -> int | None:
    if ".self_attn.q_proj." in name:
        return config.num_q_heads
    if ".self_attn.k_proj." in name:
        return config.num_kv_heads
    return None


def _dequantised(file: GgufFile, tensor: GgufTensor) -> np.ndarray:
    """The tensor's values in fp32."""
    raw = np.frombuffer(file.tensor_bytes(tensor), dtype=np.uint8)
    num_rows = math.prod(tensor.shape[:-1])
    while num_rows % 2 == 0 and ROWS_PER_GROUP * 2 * math.prod(tensor.shape) // num_rows <= GROUP_VALUES:
        num_rows //= 2  # two rows of whole quantisation blocks are as good as one
    try:
        values: np.ndarray = dequantize(raw.reshape(num_rows, -1), tensor.type)
    except NotImplementedError:
        raise ModelNotSupported(
            f"{file.path}: tensor {tensor.name} is quantised as {tensor.type.name}, which is not read; "
            "convert the model to Q8_0 or Q4_K_M, or use its safetensors"
        ) from None
    return values.reshape(tensor.shape)
