"""The numbers of a checkpoint that shape the decoder, whatever file format they came from."""

from dataclasses import dataclass
from pathlib import Path

from tidegate_server.errors import ModelNotSupported

CHECKPOINT_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Llama3RopeScaling:
    """Stretches slow rotations by `factor`, keeps fast ones, and blends in between.

    Source:
        `rope_type: llama3` of Llama 3.1's config; wavelengths are compared with the context it was pretrained on.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_len: int


@dataclass(frozen=True, slots=True)
class RopeFrequencyDivisors:
    """One divisor per rotation frequency: what llama.cpp stores in place of a rule, as tensor `rope_freqs.weight`."""

    divisors: tuple[float, ...]  # head_dim // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One decoder of the Llama family."""

    architecture: str  # as the checkpoint calls it, for logs
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3RopeScaling | RopeFrequencyDivisors | None
    context_len: int  # tokens it was trained for, prompt and output together
    tied_head: bool  # the output projection is the embedding
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    dtype: str  # the checkpoint's own, one of CHECKPOINT_DTYPES
    eos_token_ids: tuple[int, ...]

    @property
    def q_size(self) -> int:
        return self.num_q_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def attention_scale(self) -> float:
        return float(self.head_dim**-0.5)


def check_config(config: ModelConfig, source: Path) -> ModelConfig:
    """The same config, once its numbers fit together.

    Raises:
        ModelNotSupported: they do not; names the two that disagree.
    """
    if config.num_q_heads % config.num_kv_heads:
        raise ModelNotSupported(
            f"{source}: {config.num_q_heads} attention heads do not divide among {config.num_kv_heads} key-value heads"
        )
    if config.head_dim % 2:
        raise ModelNotSupported(f"{source}: head_dim is {config.head_dim}; rotary embedding needs an even one")
    divisors = config.rope_scaling.divisors if isinstance(config.rope_scaling, RopeFrequencyDivisors) else None
    if divisors is not None and len(divisors) != config.head_dim // 2:
        raise ModelNotSupported(
            f"{source}: rope_freqs.weight holds {len(divisors)} numbers; head_dim {config.head_dim} needs half as many"
        )
    if not all(0 <= token_id < config.vocab_size for token_id in config.eos_token_ids):
        raise ModelNotSupported(
            f"{source}: end tokens {config.eos_token_ids} do not lie in a vocabulary of {config.vocab_size}"
        )
    return config
