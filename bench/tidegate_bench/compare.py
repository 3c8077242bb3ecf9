"""Measure servers in turn on this machine: one at a time, the same requests for each."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from tidegate_bench.comparison import Ceiling, Comparison, ServerStart, WorkloadRun
from tidegate_bench.launch import Server, ServerOptions
from tidegate_bench.machine import Machine, cpu_share, describe_machine, read_cpu_clock
from tidegate_bench.process_tree import ProcessTree
from tidegate_bench.roofline import (
    ModelCost,
    Roofline,
    decode_tokens_per_s_ceiling,
    measure_roofline,
    output_tokens_per_s_ceiling,
    read_model_cost,
)
from tidegate_bench.server_process import ServerProcess, free_port
from tidegate_bench.summary import summarise
from tidegate_bench.target import Target
from tidegate_bench.workloads import QUICK, Scale, Workload, build_workload

# 64 requests of 256 + 128 tokens: the largest burst fits, so that only W5 measures a lack of memory.
AMPLE_KV_TOKENS = 24_576
MAX_MODEL_LEN = 1024
WARM_UP = replace(QUICK, burst_requests=4)
WARM_UP_REPEAT = -1  # token ids that no measured run uses


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    servers: tuple[Server, ...]  # in the order of their turns
    workloads: tuple[str, ...]
    model: Path
    dtype: str
    scale: Scale
    repeats: int  # of each workload, each turn
    turns: int  # of each server: A B, A B, ...
    seed: int
    log_folder: Path
    command: str  # makes it again


Say = Callable[[str], None]


async def compare(plan: Plan, say: Say, find_limits: Callable[[str, int], Roofline] = measure_roofline) -> Comparison:
    """Run the plan.

    Args:
        say: gets a line on each thing that begins or ends.
        find_limits: the machine's own, for a dtype and a number of CPUs.

    Raises:
        BenchError: a server cannot be installed or started.
    """
    machine = describe_machine()
    cost = read_model_cost(plan.model)
    say(f"machine: {machine.cpu}, {machine.num_cpus} CPUs, {' '.join(machine.isa)}")
    versions = {}
    for server in plan.servers:
        say(f"{server.name}: installing, unless it is there already")
        versions[server.name] = await asyncio.to_thread(server.install, plan.model, plan.dtype)
    say("measuring the machine's own limits")
    before = await asyncio.to_thread(find_limits, plan.dtype, machine.num_cpus)
    starts: list[ServerStart] = []
    runs: list[WorkloadRun] = []
    for turn, server, kv_tokens, names in _sessions(plan):
        start, more = await _measure_session(
            plan, server, versions[server.name], turn, kv_tokens, names, cost, machine, say
        )
        starts.append(start)
        runs.extend(more)
    # A neighbour that was busy at one end of the run must not lower a limit that the servers then seem to break.
    roofline = before.best_of(await asyncio.to_thread(find_limits, plan.dtype, machine.num_cpus))
    return Comparison(
        kind="workloads",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=plan.command,
        model=plan.model.name,
        dtype=plan.dtype,
        machine=machine,
        roofline=roofline,
        ceilings=tuple(_ceiling(name, plan, cost, roofline) for name in plan.workloads),
        starts=tuple(starts),
        runs=tuple(runs),
    )


def _sessions(plan: Plan) -> Iterator[tuple[int, Server, int, tuple[str, ...]]]:
    """Each start of a server: its turn, its KV memory, and the workloads meant for that memory."""

    def kv_tokens(name: str) -> int:
        return build_workload(name, plan.scale).kv_tokens or AMPLE_KV_TOKENS

    by_memory = [
        (memory, tuple(names))
        for memory, names in itertools.groupby(sorted(plan.workloads, key=kv_tokens, reverse=True), key=kv_tokens)
    ]
    for turn in range(plan.turns):
        for server in plan.servers:
            for memory, names in by_memory:
                yield turn, server, memory, names


async def _measure_session(
    plan: Plan,
    server: Server,
    version: str,
    turn: int,
    kv_tokens: int,
    names: Sequence[str],
    cost: ModelCost,
    machine: Machine,
    say: Say,
) -> tuple[ServerStart, list[WorkloadRun]]:
    port, ops_port = free_port(), free_port()
    launch = server.launch(
        ServerOptions(
            model=plan.model,
            dtype=plan.dtype,
            kv_tokens=kv_tokens,
            max_model_len=MAX_MODEL_LEN,
            num_cpus=machine.num_cpus,
            port=port,
            ops_port=ops_port,
        )
    )
    log = plan.log_folder / f"{server.name}-{turn}-{kv_tokens}.log"
    say(f"{server.name}: starting with room for {kv_tokens} tokens, log in {log}")
    runs: list[WorkloadRun] = []
    async with ServerProcess(launch, port, log) as process:
        say(f"{server.name}: ready after {process.ready_s:.1f} s; warming up")
        await process.target.run(build_workload("W1", WARM_UP, repeat=WARM_UP_REPEAT, vocab_size=cost.vocab_size))
        for name in names:
            for repeat in range(plan.repeats):
                # Another turn asks for the same requests again, of a server that has just started.
                workload = build_workload(name, plan.scale, seed=plan.seed, repeat=repeat, vocab_size=cost.vocab_size)
                run = await measure_workload(
                    process.target, workload, server.name, turn, repeat, machine.num_cpus, process.tree
                )
                runs.append(run)
                say(_line(run))
        start = ServerStart(
            server=server.name,
            version=version,
            kernels=process.kernels,
            turn=turn,
            kv_tokens=kv_tokens,
            ready_s=process.ready_s,
            peak_rss_bytes=max(process.tree.rss_bytes(), process.tree.peak_rss_bytes),
            pss_bytes=process.tree.pss_bytes(),
        )
    return start, runs


async def measure_workload(
    target: Target, workload: Workload, server: str, turn: int, repeat: int, num_cpus: int, tree: ProcessTree | None
) -> WorkloadRun:
    """Run one workload and say who used the CPU meanwhile; without a tree (the server is elsewhere) nobody asks."""
    before = read_cpu_clock(tree, time.perf_counter()) if tree is not None else None
    records = await target.run(workload)
    after = read_cpu_clock(tree, time.perf_counter()) if tree is not None else None
    cpu = cpu_share(before, after, num_cpus) if before is not None and after is not None else None
    return WorkloadRun(server, workload.name, turn, repeat, summarise(records), cpu)


def _ceiling(name: str, plan: Plan, cost: ModelCost, roofline: Roofline) -> Ceiling:
    workload = build_workload(name, plan.scale, seed=plan.seed, vocab_size=cost.vocab_size)
    all_at_once = all(request.arrival_s == 0.0 for request in workload.requests)
    return Ceiling(
        workload=name,
        output_tokens_per_s=(
            output_tokens_per_s_ceiling(workload, cost, roofline, plan.dtype) if all_at_once else None
        ),
        decode_tokens_per_s=decode_tokens_per_s_ceiling(cost, roofline, plan.dtype),
    )


def _line(run: WorkloadRun) -> str:
    summary = run.summary
    line = f"{run.server}: {run.workload} #{run.repeat + 1}: {summary.output_tokens_per_s:.1f} output tokens/s"
    if summary.ttft_s is not None:
        line += f", TTFT p50 {summary.ttft_s.p50 * 1000:.0f} ms"
    if summary.tpot_s is not None:
        line += f", TPOT p50 {summary.tpot_s.p50 * 1000:.1f} ms"
    if run.cpu is not None:
        line += f"; others used {run.cpu.foreign:.0%} of the CPUs, steal {run.cpu.steal:.0%}"
    if summary.num_failed:
        line += f"; {summary.num_failed} FAILED: {summary.errors[0]}"
    return line
