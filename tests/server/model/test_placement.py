"""Settings and machine to a device, a dtype and a number of threads."""

import pytest
import torch

from tests.server.model.configs import small_config
from tidegate_server.errors import InvalidSetting
from tidegate_server.model import placement
from tidegate_server.model.placement import choose_device, choose_dtype, use_allowed_cpus

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("wanted", "has_gpu", "expected"),
    [("auto", False, CPU), ("auto", True, CUDA), ("cpu", True, CPU), ("cuda", True, CUDA)],
)
def test_a_device_is_chosen(
    monkeypatch: pytest.MonkeyPatch, wanted: str, has_gpu: bool, expected: torch.device
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    assert choose_device(wanted) == expected


@pytest.mark.parametrize(("wanted", "words"), [("cuda", "torch sees no GPU"), ("tpu", "tpu is unknown")])
def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, wanted: str, words: str) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InvalidSetting, match=rf"--device: {words}|--device: cuda was asked for, but {words}"):
        choose_device(wanted)


@pytest.mark.parametrize(
    ("wanted", "own", "device", "has_cpu_kernels", "expected"),
    [
        pytest.param("auto", "bfloat16", CPU, True, torch.bfloat16, id="the kernels read bfloat16 as it is"),
        pytest.param("auto", "bfloat16", CPU, False, torch.float32, id="torch is slow at it"),
        pytest.param("auto", "float16", CPU, True, torch.float32, id="no kernels, and bfloat16 would lose digits"),
        pytest.param("auto", "float32", CPU, True, torch.float32, id="nothing is lost unasked"),
        pytest.param("auto", "bfloat16", CUDA, False, torch.bfloat16, id="a GPU takes the checkpoint's own"),
        pytest.param("bfloat16", "float32", CPU, False, torch.bfloat16, id="asked for on a CPU"),
        pytest.param("float16", "bfloat16", CUDA, False, torch.float16, id="asked for on a GPU"),
        pytest.param("float32", "bfloat16", CUDA, False, torch.float32, id="asked for, wider than the checkpoint"),
    ],
)
def test_a_dtype_is_chosen(
    wanted: str, own: str, device: torch.device, has_cpu_kernels: bool, expected: torch.dtype
) -> None:
    assert choose_dtype(wanted, small_config(dtype=own), device, has_cpu_kernels) is expected


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"--dtype: int8 is unknown; use auto, float32"):
        choose_dtype("int8", small_config(), CPU, has_cpu_kernels=True)


def test_threads_never_pass_the_limit_nor_what_torch_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    try:
        monkeypatch.setattr(placement, "usable_cpus", lambda: 1)
        monkeypatch.setattr(placement, "MOST_TORCH_THREADS", 2)
        assert use_allowed_cpus() == torch.get_num_threads() == 1
        monkeypatch.setattr(placement, "usable_cpus", lambda: 64)
        assert use_allowed_cpus() == torch.get_num_threads() == 2  # whatever torch has been held to since
    finally:
        torch.set_num_threads(before)
