"""What `--quantization` makes of a checkpoint on the CPU kernels: which numbers are kept, and what comes out."""

from pathlib import Path

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor

from tests.server.model.gguf_writing import small_tensors, write_gguf
from tests.server.model.small_model import write_small_model
from tests.server.model.test_runner import scheduled
from tidegate_kernels.cpu.library import load_library
from tidegate_server.engine.batch import Batch
from tidegate_server.errors import InvalidSetting
from tidegate_server.model.inputs import build_inputs
from tidegate_server.model.loading import LoadedModel, load_model
from tidegate_server.model.runner import load_runner
from tidegate_server.model_source import resolve_model
from tidegate_server.settings import EngineSettings, Quantization

pytestmark = pytest.mark.skipif(load_library() is None, reason="the CPU kernels were not built")

PROMPT = [(7 * i) % 40 for i in range(30)]
Kind = GGMLQuantizationType


def settings(quantization: Quantization, dtype: str = "float32", cpu_isa: str = "auto") -> EngineSettings:
    return EngineSettings(device="cpu", dtype=dtype, cpu_isa=cpu_isa, num_kv_blocks=8, quantization=quantization)


def loaded(path: Path, quantization: Quantization, dtype: str = "float32") -> LoadedModel:
    return load_model(settings(quantization, dtype), resolve_model(str(path)), torch.device("cpu"), num_threads=2)


def logits(path: Path, quantization: Quantization, dtype: str = "float32") -> Tensor:
    """Of a prompt's last token."""
    runner = load_runner(settings(quantization, dtype), resolve_model(str(path)))
    inputs = build_inputs(Batch(step=1, scheduled=(scheduled("a", 0, PROMPT, [1, 2]),)), 16, torch.device("cpu"))
    with torch.inference_mode():
        return runner.decoder.forward(inputs, runner.kv_cache)


def folder_of(path: Path, tensors: dict[str, Tensor]) -> Path:
    path.mkdir()
    return write_small_model(path, tensors)


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
def test_a_quantised_file_is_kept_and_gives_the_bits_of_its_numbers(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    path = write_gguf(tmp_path / "m.gguf", small_tensors(), quantisation=kind)
    assert loaded(path, Quantization.AUTO).weights == kind.name.lower()
    assert loaded(path, Quantization.NONE).weights == "f32"
    assert torch.equal(logits(path, Quantization.AUTO), logits(path, Quantization.NONE))


@pytest.mark.parametrize(
    ("others", "weights"),
    [
        pytest.param({"v_proj": Kind.Q8_0}, "q4_0, q8_0", id="values apart"),
        pytest.param({"k_proj": Kind.Q8_0}, "q4_0, q8_0", id="keys apart"),
        pytest.param({"q_proj": Kind.Q4_1, "v_proj": Kind.Q8_0}, "q4_0, q4_1, q8_0", id="each of its own"),
        pytest.param({"up_proj": Kind.Q8_0}, "f32, q4_0", id="gate and up, which need one packing"),
        pytest.param({"down_proj": Kind.Q5_0}, "f32, q4_0", id="a type that is not kept"),
        pytest.param({"embed_tokens": Kind.F16}, "f32, q4_0", id="an embedding of its own"),
    ],
)
def test_mixed_types_give_the_bits_of_their_numbers(
    tmp_path: Path, others: dict[str, GGMLQuantizationType], weights: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", small_tensors(), quantisation=Kind.Q4_0, others=others)
    assert loaded(path, Quantization.AUTO).weights == weights
    assert torch.equal(logits(path, Quantization.AUTO), logits(path, Quantization.NONE))


def test_int8_is_what_a_q8_0_file_holds(tmp_path: Path) -> None:
    tensors = small_tensors()
    folder = folder_of(tmp_path / "folder", tensors)
    file = write_gguf(tmp_path / "m.gguf", tensors, quantisation=Kind.Q8_0)
    assert loaded(folder, Quantization.INT8).weights == "q8_0"
    assert torch.equal(logits(folder, Quantization.INT8), logits(file, Quantization.AUTO))
    torch.testing.assert_close(logits(folder, Quantization.INT8), logits(folder, Quantization.NONE), atol=0.5, rtol=0.1)


def test_quantised_weights_are_not_rounded_to_bfloat16(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", small_tensors(), quantisation=Kind.Q4_1)
    assert loaded(path, Quantization.AUTO, "bfloat16").weights == "q4_1"
    in_bf16 = logits(path, Quantization.AUTO, "bfloat16")  # its KV cache is
    torch.testing.assert_close(in_bf16, logits(path, Quantization.AUTO), atol=0.2, rtol=0.05)


def test_int8_of_a_quantised_file_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", small_tensors(), quantisation=Kind.Q4_1, others={"v_proj": Kind.Q8_0})
    with pytest.raises(InvalidSetting, match=r"--quantization: int8 .* holds Q4_1 and Q8_0 already: use auto or none"):
        loaded(path, Quantization.INT8)


def test_int8_without_cpu_kernels_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "folder", small_tensors())
    with pytest.raises(InvalidSetting, match="only the CPU kernels compute with it; use auto or none"):
        load_runner(settings(Quantization.INT8, cpu_isa="none"), resolve_model(str(folder)))
