"""GGUF metadata: what is read, and that whatever the decoder does not compute is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.server.model.gguf_writing import small_tensors, write_gguf
from tidegate_server.errors import ModelNotSupported
from tidegate_server.gguf_file import open_gguf
from tidegate_server.model.config import ModelConfig, RopeFrequencyDivisors
from tidegate_server.model.gguf_config import read_gguf_config


def read(
    tmp_path: Path, extra: dict[str, torch.Tensor] | None = None, architecture: str = "llama", **fields: Any
) -> ModelConfig:
    named = {key.replace("__", "."): value for key, value in fields.items()}
    path = write_gguf(tmp_path / "m.gguf", small_tensors() | (extra or {}), named, architecture)
    return read_gguf_config(open_gguf(path))


def test_sizes_are_read(tmp_path: Path) -> None:
    config = read(tmp_path, tokenizer__ggml__eos_token_id=3)
    assert (config.vocab_size, config.hidden_size, config.num_layers, config.context_len) == (40, 32, 2, 64)
    assert (config.num_q_heads, config.num_kv_heads, config.head_dim) == (4, 2, 8)
    assert (config.tied_head, config.qkv_bias, config.eos_token_ids) == (False, False, (3,))


def test_a_file_without_an_output_matrix_has_a_tied_head(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in small_tensors().items() if name != "lm_head.weight"}
    path = write_gguf(tmp_path / "m.gguf", tensors)
    assert read_gguf_config(open_gguf(path)).tied_head


def test_the_end_of_a_turn_ends_a_text_too(tmp_path: Path) -> None:
    config = read(tmp_path, tokenizer__ggml__eos_token_id=3, tokenizer__ggml__eot_token_id=5)
    assert config.eos_token_ids == (3, 5)


def test_a_well_known_end_of_a_turn_ends_a_text_though_no_key_names_it(tmp_path: Path) -> None:
    tokens = ["<|begin_of_text|>", "<|end_of_text|>", "hello", "<|eot_id|>", "<|eom_id|>", *map(str, range(5, 40))]
    config = read(tmp_path, tokenizer__ggml__eos_token_id=1, tokenizer__ggml__tokens=tokens)
    assert config.eos_token_ids == (1, 3, 4)


def test_frequency_divisors_are_read_from_their_tensor(tmp_path: Path) -> None:
    config = read(tmp_path, extra={"rope_freqs.weight": torch.tensor([1.0, 2.0, 4.0, 8.0])})
    assert config.rope_scaling == RopeFrequencyDivisors((1.0, 2.0, 4.0, 8.0))


def test_a_number_written_once_per_layer_is_read_when_all_agree(tmp_path: Path) -> None:
    assert read(tmp_path, attention__head_count_kv=[2, 2]).num_kv_heads == 2


@pytest.mark.parametrize(
    ("file_type", "dtype"), [(None, "bfloat16"), (0, "float32"), (1, "float16"), (3, "bfloat16"), (32, "bfloat16")]
)
def test_a_quantised_file_runs_in_bfloat16_on_a_gpu(tmp_path: Path, file_type: int | None, dtype: str) -> None:
    assert read(tmp_path, general__file_type=file_type).dtype == dtype


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"architecture": "mamba"}, "general.architecture is 'mamba'; supported: llama", id="architecture"),
        pytest.param({"expert_count": 8}, "llama.expert_count is 8; supported: none", id="experts"),
        pytest.param({"logit_scale": 0.5}, "llama.logit_scale is 0.5", id="a scaled output"),
        pytest.param({"rope__scaling__type": "yarn"}, "llama.rope.scaling.type is 'yarn'", id="rope scaling"),
        pytest.param({"rope__dimension_count": 4}, "llama.rope.dimension_count is 4.*a head", id="partial rotation"),
        pytest.param({"attention__value_length": 16}, "llama.attention.value_length is 16", id="wider values"),
        pytest.param({"attention__head_count_kv": [1, 2]}, "head_count_kv is .*the same for all", id="layers differ"),
        pytest.param({"attention__sliding_window": 16}, "sliding_window is 16", id="a window"),
        pytest.param({"block_count": None}, "llama.block_count is missing", id="a missing number"),
        pytest.param({"tokenizer__ggml__eos_token_id": 40}, "vocabulary of 40", id="an end token out of range"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelNotSupported, match=words) as caught:
        read(tmp_path, **fields)
    assert "\n" not in str(caught.value)
