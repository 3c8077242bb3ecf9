"""Cosines and sines of every position's rotation angles, with the checkpoint's scaling in them."""

import math

import torch
from torch import Tensor

from tidegate_server.model.config import Llama3RopeScaling, ModelConfig, RopeFrequencyDivisors


def rope_table(config: ModelConfig, num_positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Two fp32 tensors `[num_positions, head_dim // 2]`: cosines and sines.

    Source:
        Su et al. 2021, "RoFormer", equation 34; computed in fp32 in the order of transformers, to agree with it.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    match config.rope_scaling:
        case Llama3RopeScaling() as scaling:
            frequencies = _llama3(frequencies, scaling)
        case RopeFrequencyDivisors(divisors):
            frequencies = frequencies / torch.tensor(divisors, dtype=torch.float32)
        case None:
            pass
    angles = torch.arange(num_positions, dtype=torch.float32).unsqueeze(1) * frequencies
    return angles.cos().to(device), angles.sin().to(device)


def _llama3(frequencies: Tensor, scaling: Llama3RopeScaling) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    longest_kept = scaling.original_context_len / scaling.high_freq_factor
    shortest_stretched = scaling.original_context_len / scaling.low_freq_factor

    stretched = frequencies / scaling.factor
    share_kept = (scaling.original_context_len / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - share_kept) * frequencies / scaling.factor + share_kept * frequencies
    scaled = torch.where(wavelengths > shortest_stretched, stretched, blended)
    return torch.where(wavelengths < longest_kept, frequencies, scaled)
