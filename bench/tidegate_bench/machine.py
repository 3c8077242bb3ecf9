"""What the machine is, and who used its CPU while something was measured."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from tidegate_bench.process_tree import ProcessTree

# What decides which kernels a server on a CPU may use.
ISA_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
)


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts a number needs beside it."""

    cpu: str  # vendor, family and model numbers too: cloud machines often hide the name
    isa: tuple[str, ...]
    num_cpus: int
    memory_bytes: int
    kernel: str
    python: str


@dataclass(frozen=True, slots=True)
class CpuClock:
    """CPU seconds since boot, over all cores."""

    busy_s: float  # user, nice, system and interrupts
    steal_s: float
    server_s: float  # of the measured processes
    generator_s: float  # of this process
    wall_s: float  # of one core


@dataclass(frozen=True, slots=True)
class CpuShare:
    """Shares of all cores' time between two readings of the clock, 0 to 1."""

    server: float
    generator: float
    foreign: float  # everybody else's
    steal: float  # taken by the hypervisor


def best_isa(machine: Machine) -> str:
    """The kind of machine, named after the richest of our CPU kernels that it could run."""
    if "avx512_bf16" in machine.isa:
        return "avx512bf16"
    return "avx512" if "avx512f" in machine.isa else "avx2" if "avx2" in machine.isa else "plain"


def describe_machine(proc: Path = Path("/proc")) -> Machine:
    info = (proc / "cpuinfo").read_text()
    flags = set(_cpuinfo_field(info, "flags").split())
    name = (
        f"{_cpuinfo_field(info, 'model name')} "
        f"({_cpuinfo_field(info, 'vendor_id')} family {_cpuinfo_field(info, 'cpu family')} "
        f"model {_cpuinfo_field(info, 'model')})"
    )
    memory = re.search(r"^MemTotal:\s+(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    return Machine(
        cpu=name,
        isa=tuple(flag for flag in ISA_FLAGS if flag in flags),
        num_cpus=os.cpu_count() or 1,
        memory_bytes=int(memory[1]) * 1024 if memory else 0,
        kernel=platform.release(),
        python=platform.python_version(),
    )


def read_cpu_clock(server: ProcessTree | None, wall_s: float, proc: Path = Path("/proc")) -> CpuClock:
    """Read everybody's CPU time at once.

    Args:
        server: the processes that are measured; None: none of them runs on this machine.
        wall_s: the time of the reading.
    """
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _iowait, irq, softirq, steal = (
        int(word) for word in (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    own = os.times()
    return CpuClock(
        busy_s=(user + nice + system + irq + softirq) / ticks_per_s,
        steal_s=steal / ticks_per_s,
        server_s=server.cpu_s() if server is not None else 0.0,
        generator_s=own.user + own.system,
        wall_s=wall_s,
    )


def cpu_share(before: CpuClock, after: CpuClock, num_cpus: int) -> CpuShare:
    """Who used the cores between two readings; a share that rounding made negative is none."""
    available_s = (after.wall_s - before.wall_s) * num_cpus
    server_s = after.server_s - before.server_s
    generator_s = after.generator_s - before.generator_s
    foreign_s = after.busy_s - before.busy_s - server_s - generator_s

    def share(used_s: float) -> float:
        return max(0.0, used_s / available_s) if available_s > 0 else 0.0

    return CpuShare(
        server=share(server_s),
        generator=share(generator_s),
        foreign=share(foreign_s),
        steal=share(after.steal_s - before.steal_s),
    )


def _cpuinfo_field(info: str, field: str) -> str:
    found = re.search(rf"^{re.escape(field)}\s*:\s*(.*)$", info, re.MULTILINE)
    return found[1] if found else "unknown"
