"""The JSON files of a transformers checkpoint to a ModelConfig: sizes and kinds, and the tokens that end a text."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from tidegate_server.errors import ModelNotSupported
from tidegate_server.json_file import read_json_object
from tidegate_server.model.config import CHECKPOINT_DTYPES, Llama3RopeScaling, ModelConfig, check_config
from tidegate_server.tokenizer_config import read_tokenizer_config, special_token

MISTRAL_DEFAULT_WINDOW = 4096  # what transformers assumes when a Mistral config has no `sliding_window`


class ConfigFields:
    """One JSON object of a checkpoint; every look-up that fails names the file and the field."""

    def __init__(self, source: Path, fields: Mapping[str, object]) -> None:
        self.source = source
        self.fields = fields

    def refuse(self, field: str, supported: str) -> ModelNotSupported:
        value = json.dumps(self.fields.get(field), default=str)
        return ModelNotSupported(f"{self.source}: {field} is {value}; supported: {supported}")

    def count(self, field: str, default: int | None = None) -> int:
        """A positive whole number; a missing or null field is `default`, and must be there without one."""
        value = self.fields.get(field)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refuse(field, "a positive whole number")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        value = self.fields.get(field)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self.refuse(field, "a positive number")
        return float(value)

    def flag(self, field: str, default: bool = False) -> bool:
        value = self.fields.get(field)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.refuse(field, "true or false")
        return value

    def section(self, field: str) -> "ConfigFields":
        """A nested object; empty when it is missing or null."""
        value = self.fields.get(field)
        value = {} if value is None else value
        if not isinstance(value, dict):
            raise self.refuse(field, "an object")
        return ConfigFields(self.source, value)

    def token_ids(self, field: str) -> tuple[int, ...]:
        """One token id or a list of them; empty when the field is missing or null."""
        value = self.fields.get(field)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
            raise self.refuse(field, "a token id or a list of token ids")
        return tuple(values)


def read_hf_config(folder: Path) -> ModelConfig:
    """The config of a folder that holds config.json.

    Raises:
        ModelNotFound: a file cannot be read or is no JSON.
        ModelNotSupported: an architecture, or a value of a field, that the decoder does not compute.
    """
    fields = _read_fields(folder / "config.json")
    generation = _read_fields(folder / "generation_config.json", missing_ok=True)

    architectures = fields.fields.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    check_family = FAMILIES.get(name) if isinstance(name, str) else None
    if check_family is None:
        raise fields.refuse("architectures", ", ".join(sorted(FAMILIES)))
    check_family(fields)
    _refuse_what_no_family_computes(fields)

    num_q_heads = fields.count("num_attention_heads")
    hidden_size = fields.count("hidden_size")
    attention_bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")
    theta, scaling = _rope(fields)
    config = ModelConfig(
        architecture=str(name),
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_layers=fields.count("num_hidden_layers"),
        num_q_heads=num_q_heads,
        num_kv_heads=fields.count("num_key_value_heads", default=num_q_heads),
        head_dim=fields.count("head_dim", default=hidden_size // num_q_heads),
        rms_norm_eps=fields.number("rms_norm_eps", default=1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        context_len=fields.count("max_position_embeddings"),
        tied_head=fields.flag("tie_word_embeddings"),
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        mlp_bias=mlp_bias,
        dtype=_dtype(fields),
        eos_token_ids=_eos_token_ids(folder, fields, generation),
    )
    return check_config(config, fields.source)


def _read_fields(path: Path, *, missing_ok: bool = False) -> ConfigFields:
    return ConfigFields(path, read_json_object(path, missing_ok=missing_ok))


def _eos_token_ids(folder: Path, fields: ConfigFields, generation: ConfigFields) -> tuple[int, ...]:
    """The end tokens that the configs list, and the tokenizer's own, as in vLLM.

    A chat model tuned from a base model may have the end of a turn in its tokenizer alone.
    """
    listed = generation.token_ids("eos_token_id") or fields.token_ids("eos_token_id")
    named = _ids_of_token(folder, special_token(read_tokenizer_config(folder), "eos_token"))
    return tuple(dict.fromkeys([*listed, *(each for each in named if each < fields.count("vocab_size"))]))


def _ids_of_token(folder: Path, text: str | None) -> list[int]:
    if text is None:
        return []
    added = read_json_object(folder / "tokenizer.json", missing_ok=True).get("added_tokens")
    tokens = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    return [each for token in tokens if token.get("content") == text and isinstance(each := token.get("id"), int)]


def _llama(fields: ConfigFields) -> None:
    """Nothing of its own to refuse."""


def _mistral(fields: ConfigFields) -> None:
    window = fields.fields.get("sliding_window", MISTRAL_DEFAULT_WINDOW)
    context_len = fields.count("max_position_embeddings")
    # A window no smaller than the context hides nothing, so it needs no code.
    if window is not None and (not isinstance(window, int) or window < context_len):
        shown = ConfigFields(fields.source, {"sliding_window": window})
        raise shown.refuse("sliding_window", f"null, or at least max_position_embeddings ({context_len})")


FAMILIES: Mapping[str, Callable[[ConfigFields], None]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
}
"""Each architecture and the check of its own fields; a new family starts with a line here."""


def _refuse_what_no_family_computes(fields: ConfigFields) -> None:
    if fields.fields.get("hidden_act", "silu") != "silu":
        raise fields.refuse("hidden_act", "silu")
    if fields.fields.get("quantization_config") is not None:
        raise fields.refuse("quantization_config", "none: unquantised safetensors, or a GGUF file")
    if fields.number("partial_rotary_factor", default=1.0) != 1.0:
        raise fields.refuse("partial_rotary_factor", "1.0")


def _rope(fields: ConfigFields) -> tuple[float, Llama3RopeScaling | None]:
    """The base of the rotation frequencies and their scaling.

    transformers 5 keeps both in `rope_parameters`; version 4 in `rope_theta` and `rope_scaling`.
    """
    newer = fields.section("rope_parameters")
    rope = newer if newer.fields else fields.section("rope_scaling")
    theta = rope.number("rope_theta") if "rope_theta" in rope.fields else fields.number("rope_theta", default=10_000.0)
    if rope.number("partial_rotary_factor", default=1.0) != 1.0:
        raise rope.refuse("partial_rotary_factor", "1.0")

    kind = rope.fields.get("rope_type", rope.fields.get("type", "default"))
    match kind:
        case "default":
            return theta, None
        case "llama3":
            return theta, Llama3RopeScaling(
                factor=rope.number("factor"),
                low_freq_factor=rope.number("low_freq_factor"),
                high_freq_factor=rope.number("high_freq_factor"),
                original_context_len=rope.count("original_max_position_embeddings"),
            )
        case _:
            raise ConfigFields(fields.source, {"rope_type": kind}).refuse("rope_type", "default, llama3")


def _dtype(fields: ConfigFields) -> str:
    field = "dtype" if fields.fields.get("dtype") is not None else "torch_dtype"
    value = fields.fields.get(field)
    if value is None:
        return "float32"
    if value not in CHECKPOINT_DTYPES:
        raise fields.refuse(field, ", ".join(CHECKPOINT_DTYPES))
    return str(value)
