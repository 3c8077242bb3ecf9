"""A GGUF file's metadata to a ModelConfig."""

import numpy as np
from gguf.quants import dequantize

from tidegate_server.errors import ModelNotSupported
from tidegate_server.gguf_file import GgufFile, GgufValue
from tidegate_server.model.config import ModelConfig, RopeFrequencyDivisors, check_config

ARCHITECTURES = ("llama",)  # llama.cpp files Mistral and SmolLM 2 under `llama` too

# Each changes the numbers in a way the decoder does not compute; a file of a plain Llama has none of them.
UNSUPPORTED_KEYS = ("expert_count", "logit_scale", "embedding_scale", "residual_scale", "attention.scale")

# llama.cpp ends a generation at these, in whatever model and whatever ids the file names.
END_TOKENS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|end|>",
        "<end_of_turn>",
        "<EOT>",
    }
)

FILE_TYPE_DTYPES = {0: "float32", 1: "float16"}  # of `general.file_type`; the others are quantised or bfloat16


def read_gguf_config(file: GgufFile) -> ModelConfig:
    """The config of an opened GGUF file.

    Raises:
        ModelNotSupported: an architecture, or a value of a key, that the decoder does not compute.
    """
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise _refuse(file, "general.architecture", architecture, ", ".join(ARCHITECTURES))
    keys = _Keys(file, str(architecture))
    _refuse_what_is_not_computed(keys)

    num_q_heads = keys.count("attention.head_count")
    hidden_size = keys.count("embedding_length")
    head_dim = keys.count("attention.key_length", default=hidden_size // num_q_heads)
    for key in ("rope.dimension_count", "attention.value_length"):
        if keys.count(key, default=head_dim) != head_dim:
            raise keys.refuse(key, f"the length of a head ({head_dim})")
    config = ModelConfig(
        architecture=str(architecture),
        vocab_size=_vocab_size(file),
        hidden_size=hidden_size,
        intermediate_size=keys.count("feed_forward_length"),
        num_layers=keys.count("block_count"),
        num_q_heads=num_q_heads,
        num_kv_heads=keys.count("attention.head_count_kv", default=num_q_heads),
        head_dim=head_dim,
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.number("rope.freq_base", default=10_000.0),
        rope_scaling=_rope_divisors(file),
        context_len=keys.count("context_length"),
        tied_head="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        out_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        dtype=_dtype(file),
        eos_token_ids=_eos_token_ids(file),
    )
    return check_config(config, file.path)


class _Keys:
    """The metadata under one architecture's prefix; every look-up that fails names the file and the key."""

    def __init__(self, file: GgufFile, prefix: str) -> None:
        self.file = file
        self.prefix = prefix

    def get(self, key: str) -> GgufValue | None:
        return self.file.metadata.get(f"{self.prefix}.{key}")

    def refuse(self, key: str, supported: str) -> ModelNotSupported:
        return _refuse(self.file, f"{self.prefix}.{key}", self.get(key), supported)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        value = default if value is None else value
        # Some converters write one number per layer where a model has the same in all.
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refuse(key, "a positive whole number, the same for all layers")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self.refuse(key, "a positive number")
        return float(value)


def _refuse(file: GgufFile, key: str, value: object, supported: str) -> ModelNotSupported:
    shown = "missing" if value is None else repr(value)[:80]
    return ModelNotSupported(f"{file.path}: {key} is {shown}; supported: {supported}")


def _refuse_what_is_not_computed(keys: _Keys) -> None:
    for key in UNSUPPORTED_KEYS:
        if keys.get(key):  # zero means the same as missing
            raise keys.refuse(key, "none")
    if keys.get("rope.scaling.type") not in (None, "none"):
        raise keys.refuse("rope.scaling.type", "none, or a rope_freqs.weight tensor")
    if keys.get("rope.scale_linear") not in (None, 0.0, 1.0):
        raise keys.refuse("rope.scale_linear", "1.0")
    window = keys.get("attention.sliding_window")
    context_len = keys.count("context_length")
    if window and (not isinstance(window, int) or window < context_len):
        raise keys.refuse("attention.sliding_window", f"none, or at least the context ({context_len})")


def _vocab_size(file: GgufFile) -> int:
    """Rows of the embedding: `vocab_size` is missing from many files, and the tensor is what counts."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelNotSupported(f"{file.path}: there is no token_embd.weight matrix, so this is no language model")
    return embedding.shape[0]


def _rope_divisors(file: GgufFile) -> RopeFrequencyDivisors | None:
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is None:
        return None
    values: np.ndarray = dequantize(np.frombuffer(file.tensor_bytes(tensor), dtype=np.uint8), tensor.type)
    return RopeFrequencyDivisors(tuple(float(v) for v in values.reshape(-1)))


def _dtype(file: GgufFile) -> str:
    file_type = file.metadata.get("general.file_type")
    return FILE_TYPE_DTYPES.get(file_type, "bfloat16") if isinstance(file_type, int) else "bfloat16"


def _eos_token_ids(file: GgufFile) -> tuple[int, ...]:
    """The ends of a text, a turn and a message that the file names, and what ends a generation by its text alone.

    Files from before a key for the end of a turn existed name the end of a text only, which a chat does not draw.
    """
    keys = (f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom"))
    named = [value for key in keys if isinstance(value := file.metadata.get(key), int)]
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    known = [i for i, token in enumerate(tokens) if token in END_TOKENS] if isinstance(tokens, list) else []
    return tuple(dict.fromkeys([*named, *known]))
