"""What the compiler makes of every kernel for GPUs that are not here: registers, spills, shared memory, fusion."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kernels.compile_ahead import Resources

pytestmark = pytest.mark.compiles

SCRIPT = Path(__file__).with_name("compile_ahead.py")

COMPUTE_CAPABILITIES = (80, 90, 100)  # A100, H100, B200


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a kernel may take on any of these GPUs, a tenth above what Triton 3.6 and 3.9 were seen to give."""

    registers: int  # per thread, of 255
    shared_kib: int  # per program; sm_80 has 163 for all programs together
    spill_bytes: int = 0  # per thread


LIMITS: Mapping[str, Limit] = {
    "rms_norm bf16 hidden=128": Limit(32, 1),
    "rms_norm bf16 hidden=8192": Limit(80, 1),
    "rope bf16": Limit(80, 1),
    "silu_mul bf16": Limit(40, 1),
    "store_kv bf16": Limit(32, 1),
    "rms_norm fp32 hidden=128": Limit(32, 1),
    "rms_norm fp32 hidden=8192": Limit(80, 1),
    "rope fp32": Limit(80, 1),
    "silu_mul fp32": Limit(40, 1),
    "store_kv fp32": Limit(32, 1),
    "paged_attention bf16 head_dim=64 group=3": Limit(208, 48),
    "paged_attention bf16 head_dim=64 group=71": Limit(216, 56),
    "paged_attention bf16 head_dim=128 group=4": Limit(255, 88, spill_bytes=16),
    "paged_attention bf16 head_dim=256 group=2": Limit(200, 56),
    "paged_attention fp16 head_dim=128 group=8": Limit(208, 88),
    "paged_attention fp32 head_dim=64 group=4": Limit(96, 32, spill_bytes=64),
    "paged_attention fp32 head_dim=128 group=4": Limit(112, 48),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Resources, ...]:
    """Every variant for every GPU, in a process without the interpreter that this one runs kernels in."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))  # compile, rather than remember
    command = [sys.executable, str(SCRIPT), *map(str, COMPUTE_CAPABILITIES)]
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    return tuple(Resources(**found) for found in json.loads(said))


def test_every_kernel_compiles_for_every_gpu(compiled: tuple[Resources, ...]) -> None:
    expected = {(name, sm) for name in LIMITS for sm in COMPUTE_CAPABILITIES}
    assert {(found.variant, found.sm) for found in compiled} == expected


@pytest.mark.parametrize("variant", LIMITS)
def test_a_kernel_stays_within_its_resources(variant: str, compiled: tuple[Resources, ...]) -> None:
    limit = LIMITS[variant]
    for found in (found for found in compiled if found.variant == variant):
        assert found.registers <= limit.registers, found
        assert found.spill_bytes <= limit.spill_bytes, found
        assert found.shared_bytes <= limit.shared_kib * 1024, found


def test_the_compiler_fuses_no_multiplication_with_an_addition(compiled: tuple[Resources, ...]) -> None:
    matrix_product_of_fp32 = "paged_attention fp32"
    fused = [found for found in compiled if found.fused_multiply_adds and matrix_product_of_fp32 not in found.variant]
    assert not fused
