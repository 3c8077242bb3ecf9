"""What a run over the kernels measured, and each case beside the least time that the machine allows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tidegate_bench.machine import CpuShare, Machine

# Products of a decoder layer; the head follows once a step.
LAYER_PRODUCTS = ("qkv", "attention_out", "gate_up", "down")
HEAD = "head"


@dataclass(frozen=True, slots=True)
class Limits:
    """What this machine can do at best, measured before and after the kernels; the better counts."""

    read_bytes_per_s: float
    flop_per_s: Mapping[str, float]  # by dtype: the speed of torch's product of two large matrices


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One case, timed; see `case.Case` for what it costs at least."""

    kernel: str
    what: str
    rows: int
    data: str
    moved_bytes: int
    flop: int
    peaks: tuple[str, ...]
    ours_s: float
    torch_s: float


@dataclass(frozen=True, slots=True)
class KernelRun:
    """The whole of a run; the JSON file holds exactly this."""

    kind: Literal["kernels"]
    date: str
    command: str  # makes it again
    versions: Mapping[str, str]
    model: str
    num_layers: int
    machine: Machine
    isa: str  # of ours
    num_threads: int
    limits: Limits
    cpu: CpuShare  # of the whole run; `server` is nobody
    call_s: float  # of a kernel that has nothing to compute: Python to C, threads woken, and back
    times: tuple[KernelTime, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    kernel: str
    what: str
    rows: int
    data: str
    ours_s: float
    torch_s: float
    floor_s: float  # the least time that memory and arithmetic allow
    bound: str  # which of the two sets it


def lines(run: KernelRun) -> Iterator[Line]:
    """Every case, and after the products what all of a step's take together."""
    products = [_line(time, run.limits) for time in run.times if time.kernel == "gemm"]
    yield from products
    yield from _whole_steps(products, run.num_layers)
    yield from (_line(time, run.limits) for time in run.times if time.kernel != "gemm")


def _line(time: KernelTime, limits: Limits) -> Line:
    memory_s = time.moved_bytes / limits.read_bytes_per_s
    arithmetic_s = time.flop / max(limits.flop_per_s[dtype] for dtype in time.peaks)
    bound = "memory" if memory_s >= arithmetic_s else "arithmetic"
    floor_s = max(memory_s, arithmetic_s)
    return Line(time.kernel, time.what, time.rows, time.data, time.ours_s, time.torch_s, floor_s, bound)


def _whole_steps(products: list[Line], num_layers: int) -> Iterator[Line]:
    """For each kind of weights and number of rows that has all products of a decoder."""
    for data, rows in dict.fromkeys((line.data, line.rows) for line in products):
        by_name = {line.what.split()[0]: line for line in products if (line.data, line.rows) == (data, rows)}
        if any(name not in by_name for name in (*LAYER_PRODUCTS, HEAD)):
            continue
        step = [by_name[name] for name in LAYER_PRODUCTS] * num_layers + [by_name[HEAD]]
        by_memory_s = sum(line.floor_s for line in step if line.bound == "memory")
        floor_s = sum(line.floor_s for line in step)
        yield Line(
            kernel="gemm",
            what="all of a step",
            rows=rows,
            data=data,
            ours_s=sum(line.ours_s for line in step),
            torch_s=sum(line.torch_s for line in step),
            floor_s=floor_s,
            bound="memory" if by_memory_s >= floor_s / 2 else "arithmetic",
        )
