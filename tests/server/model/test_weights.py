"""Checkpoints of both formats end up in the same fused tensors, and a wrong one is refused in one line."""

import json
from pathlib import Path

import gguf
import pytest
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file

from tests.server.model.configs import small_config
from tests.server.model.gguf_writing import small_tensors, write_gguf
from tidegate_server.errors import ModelNotFound, ModelNotSupported
from tidegate_server.gguf_file import open_gguf
from tidegate_server.model.gguf_config import read_gguf_config
from tidegate_server.model.gguf_weights import GgufCheckpoint
from tidegate_server.model.safetensors_weights import open_safetensors
from tidegate_server.model.weights import DecoderWeights, load_weights

CPU = torch.device("cpu")
CONFIG = small_config()


def load_folder(folder: Path, tied: bool = False) -> DecoderWeights:
    config = small_config(tied_head=tied)
    with open_safetensors(folder, config) as checkpoint:
        return load_weights(checkpoint, config, torch.float32, CPU)


def load_file(path: Path) -> DecoderWeights:
    file = open_gguf(path)
    config = read_gguf_config(file)
    return load_weights(GgufCheckpoint(file, config), config, torch.float32, CPU)


def saved(folder: Path, tensors: dict[str, torch.Tensor], name: str = "model.safetensors") -> Path:
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / name)
    return folder


def assert_fused(weights: DecoderWeights, tensors: dict[str, torch.Tensor]) -> None:
    for index, layer in enumerate(weights.layers):
        attention, mlp = (f"model.layers.{index}.{part}." for part in ("self_attn", "mlp"))
        for linear, parts in (
            (layer.qkv, [attention + f"{name}_proj.weight" for name in "qkv"]),
            (layer.attention_out, [attention + "o_proj.weight"]),
            (layer.gate_up, [mlp + "gate_proj.weight", mlp + "up_proj.weight"]),
            (layer.down, [mlp + "down_proj.weight"]),
        ):
            assert torch.equal(linear.weight, torch.cat([tensors[name] for name in parts]).t())
            assert linear.weight.is_contiguous()
        assert torch.equal(layer.attention_norm, tensors[f"model.layers.{index}.input_layernorm.weight"])
        assert torch.equal(layer.mlp_norm, tensors[f"model.layers.{index}.post_attention_layernorm.weight"])
    assert torch.equal(weights.embedding, tensors["model.embed_tokens.weight"])
    assert torch.equal(weights.final_norm, tensors["model.norm.weight"])
    assert torch.equal(weights.head.weight, tensors["lm_head.weight"].t())


def test_safetensors_are_fused(tmp_path: Path) -> None:
    tensors = small_tensors()
    assert_fused(load_folder(saved(tmp_path, tensors)), tensors)


def test_safetensors_in_several_files_are_fused(tmp_path: Path) -> None:
    tensors = small_tensors()
    names = sorted(tensors)
    files = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in files.items():
        saved(tmp_path, {name: tensors[name] for name in part}, file)
    index = {"weight_map": {name: file for file, part in files.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_fused(load_folder(tmp_path), tensors)


def test_gguf_gives_what_safetensors_give(tmp_path: Path) -> None:
    tensors = small_tensors()
    assert_fused(load_file(write_gguf(tmp_path / "m.gguf", tensors)), tensors)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16"])
def test_quantised_gguf_is_de_quantised(tmp_path: Path, kind: str) -> None:
    quantisation = gguf.GGMLQuantizationType[kind]
    tensors = small_tensors()
    rounded = {
        name: tensor
        if tensor.dim() == 1
        else torch.from_numpy(dequantize(quantize(tensor.numpy(), quantisation), quantisation)).view(tensor.shape)
        for name, tensor in tensors.items()
    }
    assert_fused(load_file(write_gguf(tmp_path / "m.gguf", tensors, quantisation=quantisation)), rounded)


def test_a_tied_head_is_stored_once(tmp_path: Path) -> None:
    tensors = small_tensors()
    weights = load_folder(saved(tmp_path, tensors), tied=True)
    assert weights.embedding.data_ptr() == weights.head.weight.data_ptr()
    assert torch.equal(weights.embedding, tensors["model.embed_tokens.weight"])


def test_weights_are_converted_to_the_wanted_dtype(tmp_path: Path) -> None:
    tensors = {name: tensor.bfloat16() for name, tensor in small_tensors().items()}
    assert_fused(load_folder(saved(tmp_path, tensors)), {name: t.float() for name, t in tensors.items()})


def test_rotation_frequencies_of_old_checkpoints_are_passed_over(tmp_path: Path) -> None:
    tensors = small_tensors()
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    assert_fused(load_folder(saved(tmp_path, tensors | extra)), tensors)


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({NORM: None}, "tensors are missing: model.norm.weight", id="missing"),
        pytest.param({"lm_head.weight": None}, "missing: lm_head.weight", id="a head that is not tied"),
        pytest.param(
            {NORM: torch.ones(31)}, r"model.norm.weight has shape \[31\]; the config asks for \[32\]", id="shape"
        ),
        pytest.param({"model.adapter": torch.ones(1)}, "does not use: model.adapter", id="unexpected"),
        pytest.param({NORM: torch.ones(32, dtype=torch.int8)}, "stored as I8; supported: F64, F32", id="number format"),
    ],
)
def test_other_tensors_than_the_configs_are_refused(
    tmp_path: Path, change: dict[str, torch.Tensor | None], words: str
) -> None:
    merged = small_tensors() | change
    tensors = {name: tensor for name, tensor in merged.items() if tensor is not None}
    with pytest.raises(ModelNotSupported, match=words):
        load_folder(saved(tmp_path, tensors))


@pytest.mark.parametrize("keep", [0, 4, 100, -100])
def test_a_truncated_file_gives_one_line(tmp_path: Path, keep: int) -> None:
    path = saved(tmp_path, small_tensors()) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelNotFound, match="truncated or damaged") as caught:
        load_folder(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_that_the_index_lists_must_be_there(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    saved(tmp_path, {"a": torch.ones(1)}, "model-1.safetensors")
    with pytest.raises(ModelNotFound, match=r"1 of 2 weight files are missing, such as model-2\.safetensors"):
        load_folder(tmp_path)


@pytest.mark.parametrize("content", ['{"weight_map": ', "[]", "{}", '{"weight_map": {"a": 1}}'])
def test_a_damaged_index_says_so(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelNotFound, match="damaged"):
        load_folder(tmp_path)
