"""Small runs over the kernels for tests."""

from tests.bench.comparisons import MACHINE, QUIET
from tidegate_bench.kernels.result import KernelRun, KernelTime, Limits
from tidegate_bench.machine import CpuShare

# A byte takes a second, a million operations of fp32 too.
LIMITS = Limits(read_bytes_per_s=1.0, flop_per_s={"float32": 1e6, "bfloat16": 2e6})


def time_of(
    what: str,
    *,
    kernel: str = "gemm",
    rows: int = 1,
    data: str = "f32",
    moved_bytes: int = 10,
    flop: int = 1,
    peaks: tuple[str, ...] = ("float32",),
    ours_s: float = 20.0,
    torch_s: float = 30.0,
) -> KernelTime:
    return KernelTime(kernel, what, rows, data, moved_bytes, flop, peaks, ours_s, torch_s)


def kernel_run(*times: KernelTime, num_layers: int = 2, cpu: CpuShare = QUIET) -> KernelRun:
    return KernelRun(
        kind="kernels",
        date="2026-01-02T03:04:05+00:00",
        command="python -m tidegate_bench kernels",
        versions={"tidegate": "1.2.3", "torch": "2.15.0"},
        model="tiny",
        num_layers=num_layers,
        machine=MACHINE,
        isa="avx2",
        num_threads=2,
        limits=LIMITS,
        cpu=cpu,
        call_s=2e-6,
        times=times,
    )
