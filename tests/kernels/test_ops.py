"""Which implementation a device gets, and what choosing it costs."""

import subprocess
import sys

import pytest

from tidegate_kernels import paged_attention, rms_norm, rms_norm_reference, rope, silu_mul, store_kv
from tidegate_kernels.ops import select_ops


def test_a_cpu_gets_the_torch_references() -> None:
    ops = select_ops("cpu")
    assert ops.name == "torch"
    assert ops.rms_norm is rms_norm_reference.rms_norm


def test_a_cuda_device_gets_the_triton_kernels() -> None:
    ops = select_ops("cuda")
    assert ops.name == "triton"
    assert ops.rms_norm is rms_norm.rms_norm
    assert ops.rope is rope.rope
    assert ops.silu_mul is silu_mul.silu_mul
    assert ops.store_kv is store_kv.store_kv
    assert ops.paged_attention is paged_attention.paged_attention


def test_another_device_is_told_what_to_choose() -> None:
    with pytest.raises(ValueError, match="no kernels for device type 'mps': choose 'cpu' or 'cuda'"):
        select_ops("mps")


def test_a_missing_triton_is_told_by_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(RuntimeError, match=r"install 'tidegate\[server,gpu\]'"):
        select_ops("cuda")


def test_a_cpu_never_imports_triton() -> None:
    code = (
        "import sys; from tidegate_kernels.ops import select_ops; select_ops('cpu'); assert 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
