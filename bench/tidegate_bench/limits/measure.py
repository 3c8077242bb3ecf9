"""Starts our own pod as a user would, and holds it against its bounds: alone, then on few and on shared CPUs."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tidegate_bench.bytecode import compile_environment
from tidegate_bench.compare import WARM_UP, WARM_UP_REPEAT
from tidegate_bench.launch import SERVED_NAME, BenchError, Launch
from tidegate_bench.limits.confined import confined_argv
from tidegate_bench.limits.neighbour import busy_neighbour
from tidegate_bench.limits.pod_memory import peak_resident_bytes, read_mappings, resident_kv_bytes
from tidegate_bench.limits.quota import NoQuota, cpu_quota
from tidegate_bench.limits.result import (
    PYTHON_SHARE,
    UNDISTURBED,
    ConfinedRun,
    LimitsRun,
    PodMemory,
    PythonShare,
    Start,
)
from tidegate_bench.limits.step_times import decode_times, read_steps
from tidegate_bench.machine import Machine, cpu_share, describe_machine, read_cpu_clock
from tidegate_bench.process_tree import ProcessTree
from tidegate_bench.server_process import ServerProcess, free_port
from tidegate_bench.summary import summarise
from tidegate_bench.workloads import FIRST_TOKEN_ID, PlannedRequest, Scale, Workload, build_workload
from tidegate_contract.labels import LOAD_PATH

KV_BYTES = 2 << 30
QUOTA_CPUS = 1.5
VOCAB_SIZE = 49152  # prompts are token ids below it; the embedded model's
SERVER = ("-m", "tidegate_server", "serve")
TIMED_SERVER = ("-m", "tidegate_bench.limits.timed_server")

# A step's time is taken from requests that all decode at once for so long.
DECODE_PROMPT_TOKENS = 32
DECODE_OUTPUT_TOKENS = 96
MIN_STEPS = 32

PARTS = ("memory", "python", "confined")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    parts: tuple[str, ...]  # of PARTS
    serve_arguments: tuple[str, ...]  # for every start, beside what a part needs
    workloads: tuple[str, ...]  # under each condition
    scale: Scale
    repeats: int  # of each condition
    seed: int  # of the requests
    command: str
    log_folder: Path


@dataclass(frozen=True, slots=True)
class _Condition:
    """Where the pod runs, and beside whom."""

    name: str
    share_left: float | None  # of the CPUs' time; None: what the neighbour leaves
    cpus: frozenset[int] = frozenset()  # empty: all
    quota_cpus: float | None = None
    has_neighbour: bool = False


async def measure_limits(plan: Plan, say: Say) -> LimitsRun:
    """Run the plan.

    Raises:
        BenchError: the pod does not start, or a request fails.
    """
    machine = describe_machine()
    await asyncio.to_thread(compile_environment)
    starts: list[Start] = []
    not_measured: list[str] = []
    memory = await _measure_memory(plan, starts, say) if "memory" in plan.parts else None
    python = await _measure_python(plan, machine, say) if "python" in plan.parts else ()
    confined = await _measure_confined(plan, machine, starts, not_measured, say) if "confined" in plan.parts else ()
    return LimitsRun(
        kind="limits",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=plan.command,
        versions={"tidegate": version("tidegate"), "torch": version("torch")},
        machine=machine,
        serve_arguments=plan.serve_arguments,
        starts=tuple(starts),
        memory=memory,
        python=tuple(python),
        confined=tuple(confined),
        not_measured=tuple(not_measured),
    )


@contextlib.asynccontextmanager
async def _pod(
    plan: Plan,
    name: str,
    program: Sequence[str],
    arguments: Sequence[str],
    say: Say,
    cpus: frozenset[int] = frozenset(),
    group: Path | None = None,
) -> AsyncIterator[tuple[ServerProcess, Start]]:
    port, ops_port = free_port(), free_port()
    flags = ("--host", "127.0.0.1", "--port", str(port), "--ops-port", str(ops_port), "--device", "cpu")
    named = ("--served-model-name", SERVED_NAME, "--drain-notice", "0s")
    argv = (sys.executable, *program, *arguments, *flags, *named, *plan.serve_arguments)
    load_url = f"http://127.0.0.1:{ops_port}{LOAD_PATH}"
    launch = Launch(argv=tuple(confined_argv(argv, cpus, group)), load_url=load_url)
    say(f"{name}: starting the pod")
    clock = read_cpu_clock(None, time.perf_counter())
    async with ServerProcess(launch, port, plan.log_folder / f"limits-{name.replace(' ', '-')}.log") as process:
        # All that the pod ever took was taken since.
        share = cpu_share(clock, read_cpu_clock(process.tree, time.perf_counter()), os.cpu_count() or 1)
        start = Start(process.kernels, process.ready_s, max(share.foreign, share.steal))
        say(f"{name}: ready after {start.ready_s:.1f} s; others used {start.others:.0%} of the CPUs")
        yield process, start


async def _measure_memory(plan: Plan, starts: list[Start], say: Say) -> PodMemory:
    async with _pod(plan, "memory", SERVER, ("--kv-cache-memory", str(KV_BYTES)), say) as (process, start):
        starts.append(start)
        loading = sum(peak_resident_bytes(stat.pid) for stat in process.tree.living())
        await _serve(process, build_workload("W1", plan.scale, seed=plan.seed, vocab_size=VOCAB_SIZE))
        mappings = [read_mappings(stat.pid) for stat in process.tree.living()]
        memory = PodMemory(
            kv_bytes=KV_BYTES,
            # The cache is a whole number of blocks: less than a hundredth smaller.
            kv_resident_bytes=max(resident_kv_bytes(one, KV_BYTES * 99 // 100) for one in mappings),
            loading_peak_bytes=loading,
            serving_bytes=process.tree.pss_bytes(),
        )
    say(f"memory: {memory.beyond_kv_bytes / 1e9:.2f} GB beyond the KV cache")
    return memory


async def _measure_python(plan: Plan, machine: Machine, say: Say) -> list[PythonShare]:
    shares = []
    for num_requests in PYTHON_SHARE:
        name = f"python {num_requests}"
        record = plan.log_folder / f"steps-{num_requests}.json"
        record.unlink(missing_ok=True)
        async with _pod(plan, name, (*TIMED_SERVER, str(record)), (), say) as (process, _):
            clock, api_s = read_cpu_clock(process.tree, time.perf_counter()), _own_cpu_s(process.tree)
            await _serve(process, decode_workload(num_requests))
            after = read_cpu_clock(process.tree, time.perf_counter())
            share = cpu_share(clock, after, machine.num_cpus)
            api_cpu = (_own_cpu_s(process.tree) - api_s) / (after.wall_s - clock.wall_s) / machine.num_cpus
        times = decode_times(read_steps(record), num_requests) if record.exists() else None
        if times is None or times.num_steps < MIN_STEPS or times.outside_s >= times.step_s:
            raise BenchError(f"{name}: the engine noted no {MIN_STEPS} such decode steps in the C library ({times})")
        others = max(share.foreign, share.steal)
        shares.append(PythonShare(num_requests, times.num_steps, times.step_s, times.outside_s, api_cpu, others))
        say(f"{name}: {shares[-1].share:.1%} of a step of {times.step_s * 1e3:.1f} ms")
    return shares


def decode_workload(num_requests: int) -> Workload:
    """Requests that all decode together: equal prompts in length, equal outputs."""

    def request(index: int) -> PlannedRequest:
        first = FIRST_TOKEN_ID + index * DECODE_PROMPT_TOKENS  # no two share a prefix
        return PlannedRequest(index, 0.0, tuple(range(first, first + DECODE_PROMPT_TOKENS)), DECODE_OUTPUT_TOKENS)

    return Workload(f"decode {num_requests}", tuple(request(index) for index in range(num_requests)))


def _own_cpu_s(tree: ProcessTree) -> float:
    """Of the API process alone, the tree's root."""
    [root] = [stat for stat in tree.living() if stat.pid == tree.root_pid]
    return root.cpu_ticks / os.sysconf("SC_CLK_TCK")


async def _measure_confined(
    plan: Plan, machine: Machine, starts: list[Start], not_measured: list[str], say: Say
) -> list[ConfinedRun]:
    runs: list[ConfinedRun] = []
    conditions = list(conditions_for(machine.num_cpus, sorted(os.sched_getaffinity(0))))
    for repeat in range(plan.repeats):
        # In turn, so that what disturbs the machine for a while meets each of them.
        for condition in list(conditions):
            try:
                runs.extend(await _measure_condition(plan, machine, condition, repeat, starts, say))
            except NoQuota as reason:
                not_measured.append(f"{condition.name}: {reason}")
                conditions.remove(condition)
    return runs


def conditions_for(num_cpus: int, allowed: Sequence[int]) -> Iterator[_Condition]:
    """Those that take something away on such a machine."""
    yield _Condition(UNDISTURBED, share_left=1.0)
    if len(allowed) > 1:
        yield _Condition("one CPU", share_left=1 / len(allowed), cpus=frozenset(allowed[:1]))
    if num_cpus > QUOTA_CPUS:
        yield _Condition(f"quota of {QUOTA_CPUS} CPUs", share_left=QUOTA_CPUS / len(allowed), quota_cpus=QUOTA_CPUS)
    yield _Condition("busy neighbour", share_left=None, has_neighbour=True)


async def _measure_condition(
    plan: Plan, machine: Machine, condition: _Condition, repeat: int, starts: list[Start], say: Say
) -> list[ConfinedRun]:
    runs = []
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(cpu_quota(condition.quota_cpus)) if condition.quota_cpus is not None else None
        neighbour = stack.enter_context(busy_neighbour()) if condition.has_neighbour else None
        async with _pod(plan, condition.name, SERVER, (), say, condition.cpus, group) as (process, start):
            if condition.name == UNDISTURBED:
                starts.append(start)
            await _serve(process, build_workload("W1", WARM_UP, repeat=WARM_UP_REPEAT, vocab_size=VOCAB_SIZE))
            for name in plan.workloads:
                workload = build_workload(name, plan.scale, seed=plan.seed, repeat=repeat, vocab_size=VOCAB_SIZE)
                run = await _measure_workload(process, workload, condition, repeat, machine.num_cpus, neighbour)
                runs.append(run)
                say(f"{condition.name}: {name} #{repeat + 1}: {run.output_tokens_per_s:.1f} output tokens/s")
    return runs


async def _measure_workload(
    process: ServerProcess,
    workload: Workload,
    condition: _Condition,
    repeat: int,
    num_cpus: int,
    neighbour: ProcessTree | None,
) -> ConfinedRun:
    def neighbour_s() -> float:
        return neighbour.cpu_s() if neighbour is not None else 0.0

    before, neighbour_before_s = read_cpu_clock(process.tree, time.perf_counter()), neighbour_s()
    speed = await _serve(process, workload)
    after, neighbour_after_s = read_cpu_clock(process.tree, time.perf_counter()), neighbour_s()
    share = cpu_share(before, after, num_cpus)
    taken = (neighbour_after_s - neighbour_before_s) / (after.wall_s - before.wall_s) / num_cpus
    return ConfinedRun(
        condition=condition.name,
        workload=workload.name,
        repeat=repeat,
        output_tokens_per_s=speed,
        share_left=condition.share_left if condition.share_left is not None else 1 - taken,
        others=max(share.foreign - taken, share.steal),
    )


async def _serve(process: ServerProcess, workload: Workload) -> float:
    """Output tokens a second.

    Raises:
        BenchError: a request failed.
    """
    summary = summarise(await process.target.run(workload))
    if summary.num_failed:
        raise BenchError(f"{workload.name}: {summary.num_failed} requests failed: {summary.errors[0]}")
    return summary.output_tokens_per_s
