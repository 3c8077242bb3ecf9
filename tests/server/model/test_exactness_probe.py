"""The probe on a small random model: the real one passes, and an order of summing that depends on rows is found."""

import ctypes
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from structlog.testing import capture_logs
from torch import Tensor

from tests.server.model.gguf_writing import small_tensors, write_gguf
from tests.server.model.small_model import write_small_model
from tidegate_kernels.cpu.library import Library, load_library, missing_because
from tidegate_kernels.cpu.structs import Dtype, TgGemm
from tidegate_server.engine.exactness import Difference, Exactness
from tidegate_server.errors import InvalidSetting
from tidegate_server.model import exactness_probe as probe_module
from tidegate_server.model import linear as linear_module
from tidegate_server.model import loading as loading_module
from tidegate_server.model import runner as runner_module
from tidegate_server.model.kv_cache import KvCache, allocate_kv_cache
from tidegate_server.model.linear import TOGETHER, RowPlan
from tidegate_server.model.row_ops import RowOp, find_difference
from tidegate_server.model.runner import load_runner
from tidegate_server.model.step_probe import STEP
from tidegate_server.model_source import ModelFiles, resolve_model
from tidegate_server.settings import EngineSettings, ExactMode

SETTINGS = EngineSettings(device="cpu", dtype="float32", num_kv_blocks=8)
PRODUCTS = {"qkv 32x64", "attention_out 32x32", "gate_up 32x128", "down 64x32", "head 32x40"}
DTYPES = ("float32", "bfloat16")


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return resolve_model(str(write_small_model(tmp_path)))


@pytest.fixture
def library() -> Library:
    found = load_library()
    if found is None:
        pytest.skip(missing_because())
    return found


@pytest.mark.parametrize("block_size", [1, 16, 512])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_in_c_are_exact_with_every_instruction_set(
    files: ModelFiles, library: Library, dtype: str, block_size: int
) -> None:
    for isa in library.supported_isas():
        settings = replace(SETTINGS, dtype=dtype, cpu_isa=isa, block_size=block_size, exact=ExactMode.REQUIRE)
        assert load_runner(settings, files).exactness == Exactness()


@pytest.mark.parametrize("stored", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0])
def test_quantised_weights_are_probed_as_they_are(
    tmp_path: Path, library: Library, stored: GGMLQuantizationType, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def noted(op: RowOp) -> Difference | None:
        names.append(op.name)
        return find_difference(op)

    monkeypatch.setattr(probe_module, "find_difference", noted)
    path = write_gguf(tmp_path / "small.gguf", small_tensors(), quantisation=stored)
    runner = load_runner(replace(SETTINGS, exact=ExactMode.REQUIRE), resolve_model(str(path)))
    assert runner.exactness == Exactness()
    assert {*names} >= {f"{name} {stored.name.lower()}" for name in PRODUCTS}
    assert {name.split()[0] for name in names} >= {"embedding", "rms_norm", "rope", "attention", "sampling"}


@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
def test_torch_is_probed_too(files: ModelFiles, dtype: str) -> None:
    runner = load_runner(replace(SETTINGS, dtype=dtype, cpu_isa="none"), files)
    assert runner.exactness is not None  # what it finds depends on the machine


def test_off_loads_without_a_look(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "find_differences", None)
    assert load_runner(replace(SETTINGS, exact=ExactMode.OFF), files).exactness is None


@pytest.mark.parametrize("cpu_isa", ["none", "auto"])
def test_the_cache_is_as_the_warm_up_left_it(files: ModelFiles, cpu_isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    caches: list[KvCache] = []

    def allocate(*arguments: Any) -> KvCache:
        caches.append(allocate_kv_cache(*arguments))
        caches[-1].blocks.fill_(math.nan)
        return caches[-1]

    monkeypatch.setattr(runner_module, "allocate_kv_cache", allocate)
    load_runner(replace(SETTINGS, cpu_isa=cpu_isa), files)
    (cache,) = caches
    assert cache.blocks[1:].isnan().all()
    assert not cache.blocks[0].isnan().all()  # the warm-up was here


@pytest.fixture
def torch_sums_many_rows_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of more than a padded single row start at the last input."""
    product: Callable[[Tensor, Tensor, RowPlan], Tensor] = linear_module._product

    def in_two_orders(x: Tensor, weight: Tensor, plan: RowPlan) -> Tensor:
        if len(x) <= TOGETHER.min_rows:
            return product(x, weight, plan)
        rows = [product(x[i : i + 1].flip(1), weight.flip(0), plan) for i in range(len(x))]
        return torch.cat(rows)

    monkeypatch.setattr(linear_module, "_product", in_two_orders)
    monkeypatch.setattr(loading_module, "find_row_plan", lambda weights: TOGETHER)  # else tiles would avoid it


@pytest.mark.usefixtures("torch_sums_many_rows_backwards")
def test_products_of_torch_in_two_orders_are_found(files: ModelFiles) -> None:
    with capture_logs() as lines:
        runner = load_runner(replace(SETTINGS, cpu_isa="none"), files)
    assert runner.exactness is not None
    assert {*runner.exactness.inexact_ops} >= PRODUCTS | {STEP}
    assert not any(op.startswith(("rms_norm", "rope", "silu_mul")) for op in runner.exactness.inexact_ops)
    (line,) = [line for line in lines if line["event"] == "exactness_probed"]
    assert (line["log_level"], line["exact"], line["kernels"]) == ("warning", False, "torch")


@pytest.mark.usefixtures("torch_sums_many_rows_backwards")
def test_require_refuses_products_in_two_orders_and_names_them(files: ModelFiles) -> None:
    with pytest.raises(InvalidSetting) as refused:
        load_runner(replace(SETTINGS, cpu_isa="none", exact=ExactMode.REQUIRE), files)
    assert str(refused.value).startswith("--exact: require ")
    assert all(name in str(refused.value) for name in PRODUCTS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_kernel_in_c_that_treats_single_rows_differently_is_found(
    files: ModelFiles, library: Library, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_gemm(op: TgGemm) -> None:
        library.run_gemm(op)
        if op.m == 1 and op.y_dtype == Dtype.F32:
            y = ctypes.c_float.from_address(op.y)
            y.value += 2.0**-20 * abs(y.value)

    monkeypatch.setattr(loading_module, "load_library", lambda: replace(library, run_gemm=run_gemm))
    found = load_runner(replace(SETTINGS, dtype=dtype), files).exactness
    assert found is not None
    packing = "f32" if dtype == "float32" else "bf16"
    assert {difference.op for difference in found.differences} == {f"{name} {packing}" for name in PRODUCTS}
    assert all(difference.how.startswith("a row alone ") for difference in found.differences)
