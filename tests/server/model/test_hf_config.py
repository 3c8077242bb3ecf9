"""config.json: what is read, and that whatever the decoder does not compute is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from tidegate_server.errors import ModelNotFound, ModelNotSupported
from tidegate_server.model.config import Llama3RopeScaling, ModelConfig
from tidegate_server.model.hf_config import read_hf_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def read(folder: Path, generation: dict[str, Any] | None = None, **fields: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(LLAMA | fields))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_hf_config(folder)


def test_what_a_config_leaves_out_is_as_in_transformers(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.num_kv_heads, config.head_dim, config.rms_norm_eps, config.rope_theta) == (4, 16, 1e-6, 10_000.0)
    assert (config.tied_head, config.qkv_bias, config.mlp_bias, config.rope_scaling) == (False, False, False, None)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE}, id="as transformers 4 writes it"),
        pytest.param({"rope_parameters": LLAMA3_ROPE | {"rope_theta": 5e5}}, id="as transformers 5 writes it"),
    ],
)
def test_rope_is_read_from_both_layouts(tmp_path: Path, fields: dict[str, Any]) -> None:
    config = read(tmp_path, **fields)
    assert config.rope_theta == 5e5
    assert config.rope_scaling == Llama3RopeScaling(8.0, 1.0, 4.0, 64)


@pytest.mark.parametrize(
    ("fields", "generation", "expected"),
    [
        ({}, None, (2,)),
        ({}, {"eos_token_id": [7, 9]}, (7, 9)),
        ({"eos_token_id": [3, 4]}, {"eos_token_id": None}, (3, 4)),
        ({"eos_token_id": None}, {}, ()),
    ],
)
def test_end_tokens_come_from_the_generation_config_first(
    tmp_path: Path, fields: dict[str, Any], generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    assert read(tmp_path, generation, **fields).eos_token_ids == expected


@pytest.mark.parametrize(
    ("eos_token", "expected"),
    [
        pytest.param("<|im_end|>", (2, 5), id="as a text"),
        pytest.param({"content": "<|im_end|>"}, (2, 5), id="as a table"),
        pytest.param("<|end|>", (2,), id="a token that the tokenizer lacks"),
        pytest.param("<|extra|>", (2,), id="a token past the rows of the model"),
        pytest.param(None, (2,), id="none"),
    ],
)
def test_the_tokenizer_s_own_end_token_ends_a_text_too(
    tmp_path: Path, eos_token: object, expected: tuple[int, ...]
) -> None:
    added = [{"id": 5, "content": "<|im_end|>"}, {"id": 128, "content": "<|extra|>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos_token}))
    assert read(tmp_path).eos_token_ids == expected


@pytest.mark.parametrize(("field", "value"), [("dtype", "bfloat16"), ("torch_dtype", "bfloat16")])
def test_the_dtype_has_an_old_and_a_new_name(tmp_path: Path, field: str, value: Any) -> None:
    assert read(tmp_path, **{field: value}).dtype == "bfloat16"


def test_a_window_over_the_whole_context_hides_nothing(tmp_path: Path) -> None:
    for window in (None, 256, 4096):
        assert read(tmp_path, architectures=["MistralForCausalLM"], sliding_window=window).context_len == 256


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"architectures": ["MambaForCausalLM"]}, "architectures is .*Mamba.*Llama.*Mistral", id="family"),
        pytest.param({"architectures": None}, "architectures is null", id="no family"),
        pytest.param({"hidden_act": "gelu"}, 'hidden_act is "gelu"; supported: silu', id="activation"),
        pytest.param({"rope_scaling": {"rope_type": "yarn"}}, 'rope_type is "yarn".*llama3', id="rope scaling"),
        pytest.param({"rope_scaling": {"type": "linear"}}, 'rope_type is "linear"', id="rope scaling, old name"),
        pytest.param(
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "factor is null", id="half a rope"
        ),
        pytest.param({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5", id="partial rotation"),
        pytest.param({"quantization_config": {"bits": 4}}, "quantization_config is", id="quantised weights"),
        pytest.param({"torch_dtype": "float8_e4m3fn"}, "torch_dtype is .*bfloat16", id="dtype"),
        pytest.param({"vocab_size": None}, "vocab_size is null", id="a missing number"),
        pytest.param({"hidden_size": "64"}, 'hidden_size is "64".*whole number', id="a number as text"),
        pytest.param({"num_hidden_layers": 0}, "num_hidden_layers is 0", id="no layers"),
        pytest.param({"num_key_value_heads": 3}, "4 attention heads do not divide among 3", id="heads"),
        pytest.param({"head_dim": 15}, "head_dim is 15.*even", id="an odd head"),
        pytest.param({"eos_token_id": 128}, "do not lie in a vocabulary of 128", id="an end token out of range"),
        pytest.param({"eos_token_id": "</s>"}, "eos_token_id is", id="an end token as text"),
        pytest.param({"tie_word_embeddings": 1}, "tie_word_embeddings is 1.*true or false", id="a flag as number"),
        pytest.param(
            {"architectures": ["MistralForCausalLM"], "sliding_window": 64},
            "sliding_window is 64.*at least max_position_embeddings",
            id="a window",
        ),
        pytest.param(
            {"architectures": ["MistralForCausalLM"], "max_position_embeddings": 8192},
            "sliding_window is 4096",
            id="Mistral's window by default",
        ),
    ],
)
def test_what_is_not_computed_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelNotSupported, match=words) as caught:
        read(tmp_path, **fields)
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b'{"architectures": [', b"[]", b"\xff\xfe"])
def test_a_damaged_config_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelNotFound, match="damaged"):
        read_hf_config(tmp_path)


def test_a_missing_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="cannot be read"):
        read_hf_config(tmp_path)
