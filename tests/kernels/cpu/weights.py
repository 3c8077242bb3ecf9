"""Random quantised weights, with the numbers that the `gguf` package takes them for."""

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from tidegate_kernels.cpu.packed_linear import QuantizedRows
from tidegate_kernels.cpu.structs import Packing

QUANTIZED = [Packing.Q8_0, Packing.Q4_0, Packing.Q4_1, Packing.Q4_K, Packing.Q6_K]

# Where a block holds fp16 numbers, in bytes: everything else may be any bits.
_FP16_AT = {
    Packing.Q8_0: (0,),
    Packing.Q4_0: (0,),
    Packing.Q4_1: (0, 2),
    Packing.Q4_K: (0, 2),
    Packing.Q6_K: (208,),
}

_LARGEST = {Packing.Q8_0: 127, Packing.Q4_0: 8, Packing.Q4_1: 15, Packing.Q4_K: 15 * 63, Packing.Q6_K: 32 * 127}


def quantized_rows(packing: Packing, num_outputs: int, num_inputs: int) -> tuple[QuantizedRows, Tensor]:
    """Rows of random bits, scales apart, which make numbers of about one; and what they stand for, in fp32."""
    kind = GGMLQuantizationType[packing.name]
    block_inputs, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = torch.randint(256, (num_outputs, num_inputs // block_inputs, block_bytes), dtype=torch.uint8).numpy()
    for at in _FP16_AT[packing]:
        scales = (torch.randn(blocks.shape[:2]) / _LARGEST[packing]).half().numpy()
        blocks[:, :, at : at + 2] = scales.view(np.uint8).reshape(*blocks.shape[:2], 2)
    rows = blocks.reshape(num_outputs, -1)
    return QuantizedRows(torch.from_numpy(rows), packing, num_inputs), torch.from_numpy(dequantize(rows, kind))
