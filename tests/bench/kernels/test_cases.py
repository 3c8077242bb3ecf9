"""Every case of the benchmark computes with our kernel what torch computes, on a small decoder."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.server.model.configs import small_config
from tidegate_bench.kernels import case as case_module
from tidegate_bench.kernels.attention import SHAPES, num_scores
from tidegate_bench.kernels.formats import FORMATS
from tidegate_bench.kernels.measure import CASES, Plan, cases, check, measure_kernels
from tidegate_bench.kernels.result import KernelRun
from tidegate_bench.kernels.timing import Rounds
from tidegate_bench.launch import BenchError
from tidegate_bench.roofline import Roofline
from tidegate_kernels.cpu.library import Library, load_library, missing_because
from tidegate_kernels.cpu.structs import Packing

# Inputs in whole blocks of every format.
CONFIG = small_config(vocab_size=80, hidden_size=256, intermediate_size=512, num_q_heads=4, num_kv_heads=2, head_dim=64)

pytestmark = pytest.mark.skipif(load_library() is None, reason=missing_because())


@pytest.fixture(autouse=True)
def few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_module, "MAX_COPIES", 3)


@pytest.fixture
def library() -> Iterator[Library]:
    """Started with the fastest instruction set of this machine."""
    loaded = load_library()
    assert loaded is not None
    loaded.start(None, num_threads=2, cpus=None)
    yield loaded
    loaded.stop()


@pytest.mark.parametrize("kernel", CASES)
@torch.inference_mode()
def test_each_case_computes_what_torch_does(library: Library, kernel: str) -> None:
    checked = 0
    for case in cases(library, CONFIG, [kernel]):
        check(case)
        assert case.moved_bytes > 0
        checked += 1
    assert checked > 0


@torch.inference_mode()
def test_a_wrong_result_has_no_speed(library: Library) -> None:
    [first, *_] = cases(library, CONFIG, ["rms_norm"])
    wrong = replace(first, ours=lambda: first.ours() + 1)
    with pytest.raises(BenchError, match=r"rms_norm, rows of 256, 1 rows, fp32: differs from torch by"):
        check(wrong)


def test_every_packing_is_measured() -> None:
    assert [form.packing for form in FORMATS] == list(Packing)


@torch.inference_mode()
def test_a_product_moves_the_bytes_of_its_packing(library: Library) -> None:
    moved = {
        case.data: case.moved_bytes
        for case in cases(library, CONFIG, ["gemm"])
        if case.rows == 1 and case.what == "head 256 → 80"
    }
    other = 4 * (256 + 80)  # a row in, and one out
    assert moved["f32"] == 4 * 256 * 80 + other
    assert moved["bf16"] == 2 * 256 * 80 + other
    assert moved["q8_0"] < 0.6 * moved["bf16"]


def test_a_token_sees_itself_and_what_came_before() -> None:
    whole, rest = (
        next(s for s in SHAPES if s.num_new == s.context),
        next(s for s in SHAPES if 1 < s.num_new < s.context),
    )
    assert num_scores(whole) == whole.context * (whole.context + 1) // 2
    assert num_scores(rest) == sum(range(rest.context - rest.num_new + 1, rest.context + 1))
    decode = next(s for s in SHAPES if s.num_requests > 1)
    assert num_scores(decode) == decode.num_requests * decode.context


def measure(folder: Path, isa: str | None = None) -> KernelRun:
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "vocab_size": 40,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 5,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 64,
                "rms_norm_eps": 1e-5,
                "eos_token_id": 2,
            }
        )
    )
    plan = Plan(
        model=folder,
        isa=isa,
        kernels=("rms_norm", "argmax"),
        rounds=Rounds(num_rounds=1, round_s=0.0, pause_s=0.0),
        command="python -m tidegate_bench kernels",
    )
    measured = iter([3e9, 9e9])  # before and after
    return measure_kernels(plan, lambda line: None, lambda dtype, threads: Roofline(next(measured), 100e9, "2.15.0"))


def test_a_run_times_each_case_and_takes_the_better_limit(tmp_path: Path) -> None:
    run = measure(tmp_path)
    assert [(time.kernel, time.rows) for time in run.times] == [
        *(("rms_norm", rows) for rows in (1, 64, 256)),
        *(("argmax", rows) for rows in (1, 64)),
    ]
    assert all(time.ours_s > 0 and time.torch_s > 0 for time in run.times)
    assert (run.limits.read_bytes_per_s, run.num_layers, run.call_s > 0) == (9e9, 5, True)


def test_an_instruction_set_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="sse9"):
        measure(tmp_path, isa="sse9")


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    plan = Plan(model=tmp_path / "none", isa=None, kernels=(), rounds=Rounds(), command="")
    with pytest.raises(BenchError, match="none"):
        measure_kernels(plan, lambda line: None, lambda dtype, threads: Roofline(1.0, 1.0, ""))
