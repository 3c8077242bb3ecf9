"""A small model config, for tests that need one."""

from dataclasses import replace
from typing import Any

from tidegate_server.model.config import ModelConfig

SMALL_CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=40,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    rope_scaling=None,
    context_len=64,
    tied_head=False,
    qkv_bias=False,
    out_bias=False,
    mlp_bias=False,
    dtype="bfloat16",
    eos_token_ids=(2,),
)


def small_config(**fields: Any) -> ModelConfig:
    return replace(SMALL_CONFIG, **fields)
