"""Loads the model once, and holds our engine against what is asked of it; brings torch."""

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version

from tidegate_bench.engine.long_prompt import Intrusion, intrude
from tidegate_bench.engine.overload import NUM_FULL_SEQUENCES, conditions, serve_all
from tidegate_bench.engine.result import EngineRun, LongPromptRun, OverloadRun, SchedulingCost
from tidegate_bench.engine.scheduling_cost import scheduling_costs
from tidegate_bench.machine import cpu_share, describe_machine, read_cpu_clock
from tidegate_bench.summary import Spread, percentile
from tidegate_server.bench.workloads import (
    LengthRange,
    PlannedRequest,
    WorkloadKind,
    WorkloadOptions,
    build_workload,
    describe_workload,
    most_tokens,
)
from tidegate_server.model.block_copier import BlockCopier
from tidegate_server.model.host_blocks import allocate_host_blocks
from tidegate_server.model.runner import ModelRunner, load_runner
from tidegate_server.model_source import ModelFiles, resolve_model
from tidegate_server.settings import EngineSettings, ExactMode

PARTS = ("overload", "long-prompt", "scheduling")
MODEL = "builtin://smollm2-135m-instruct"
SETTINGS = EngineSettings(device="cpu", exact=ExactMode.OFF)  # the rest as it comes
STEP_TIME_TARGETS = (SETTINGS.step_time_target, 1.5, 0.0)
HOST_BYTES = 512 << 20  # for swapping: more than all requests that can run at once ever hold

# Outputs are longer than prompts: what a request needs when it is admitted is less than half of what it needs at last,
# so more of them are admitted than can stay.
PROMPT_TOKENS = LengthRange(24, 48)
OUTPUT_TOKENS = LengthRange(40, 80)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything."""

    num_requests: int
    intrusion: Intrusion
    num_scheduled_steps: int


FULL = Scale(num_requests=64, intrusion=Intrusion(), num_scheduled_steps=512)
QUICK = Scale(
    num_requests=16,
    intrusion=Intrusion(num_settling_steps=16, num_undisturbed_steps=16, num_prompt_tokens=1000),
    num_scheduled_steps=64,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    parts: tuple[str, ...]  # of PARTS
    scale: Scale
    repeats: int  # of each condition of the overload; the other parts take hundreds of steps each, once
    seed: int
    command: str


def measure_engine(plan: Plan, say: Say) -> EngineRun:
    """Run the plan.

    Args:
        say: gets a line on each measurement.
    """
    options = WorkloadOptions(
        kind=WorkloadKind.OVERLOAD,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        num_requests=plan.scale.num_requests,
        seed=plan.seed,
    )
    requests = build_workload(options)
    num_short_blocks = short_blocks(requests)
    # First, while there is little in memory that a garbage collection would have to look through.
    scheduling = tuple(_measure_scheduling(plan, say))
    say(f"loading {MODEL}")
    files = resolve_model(MODEL)
    runner = _load(plan, files)
    overload = tuple(_measure_overload(plan, runner, requests, num_short_blocks, say))
    long_prompt = tuple(_measure_long_prompt(plan, runner, say))
    return EngineRun(
        kind="engine",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=plan.command,
        versions={"tidegate": version("tidegate"), "torch": version("torch")},
        machine=describe_machine(),
        model=files.name,
        dtype=runner.dtype,
        kernels=runner.kernels,
        overload_workload=describe_workload(options, requests),
        overload_kv_tokens=num_short_blocks * runner.block_size,
        overload=overload,
        num_decodes=plan.scale.intrusion.num_decodes,
        num_long_prompt_tokens=plan.scale.intrusion.num_prompt_tokens,
        long_prompt=long_prompt,
        scheduling=scheduling,
    )


def short_blocks(requests: Sequence[PlannedRequest]) -> int:
    """KV blocks for `NUM_FULL_SEQUENCES` of the longest request."""
    return NUM_FULL_SEQUENCES * -(-most_tokens(requests) // SETTINGS.block_size)


def _load(plan: Plan, files: ModelFiles) -> ModelRunner:
    """The model, with all the memory that any part needs."""
    num_kv_blocks = plan.scale.intrusion.num_kv_blocks(SETTINGS.block_size)
    runner = load_runner(replace(SETTINGS, num_kv_blocks=num_kv_blocks, swap_memory_bytes=HOST_BYTES), files)
    # As the engine's own process does: what the model brought stays for good.
    gc.collect()
    gc.freeze()
    return runner


def _with_memory(runner: ModelRunner, num_kv_blocks: int, *, has_host_memory: bool) -> ModelRunner:
    """The same model with less memory."""
    if has_host_memory:
        return replace(runner, num_kv_blocks=num_kv_blocks)
    blocks = runner.kv_cache.blocks
    without = BlockCopier(blocks, allocate_host_blocks(0, blocks))
    return replace(runner, num_kv_blocks=num_kv_blocks, block_copier=without, swap_bytes_per_s=0.0)


def _measure_overload(
    plan: Plan, runner: ModelRunner, requests: Sequence[PlannedRequest], num_short_blocks: int, say: Say
) -> Iterator[OverloadRun]:
    for repeat in range(plan.repeats if "overload" in plan.parts else 0):
        # In turn, so that what disturbs the machine for a while meets each of them.
        for condition in conditions(SETTINGS):
            num_kv_blocks = runner.num_kv_blocks if condition.is_ample else num_short_blocks
            confined = _with_memory(runner, num_kv_blocks, has_host_memory=condition.has_host_memory)
            with _watching() as watch:
                served = serve_all(confined, condition.settings, requests, plan.seed, time.monotonic)
            run = OverloadRun(
                condition=condition.name,
                repeat=repeat,
                num_requests=len(requests),
                num_completed=served.num_completed,
                output_tokens_per_s=served.num_output_tokens / served.duration_s,
                num_preemptions=sum(served.preemptions),
                most_preemptions=max(served.preemptions, default=0),
                recomputed_tokens=served.recomputed_tokens,
                swapped_bytes=served.swapped_bytes,
                others=watch.others,
            )
            say(
                f"overload, {run.condition} #{repeat + 1}: {run.output_tokens_per_s:.1f} output tokens/s, "
                f"{run.num_preemptions} preemptions in {served.duration_s:.1f} s; others used {run.others:.0%}"
            )
            yield run


def _measure_long_prompt(plan: Plan, runner: ModelRunner, say: Say) -> Iterator[LongPromptRun]:
    plain = _with_memory(runner, runner.num_kv_blocks, has_host_memory=False)
    for target in STEP_TIME_TARGETS if "long-prompt" in plan.parts else ():
        settings = replace(SETTINGS, step_time_target=target)
        with _watching() as watch:
            gaps = intrude(plain, settings, plan.scale.intrusion, plan.seed, time.monotonic)
        run = LongPromptRun(
            step_time_target=target,
            is_default=target == SETTINGS.step_time_target,
            undisturbed_itl_s=_spread(gaps.undisturbed_s),
            during_itl_s=_spread(gaps.during_s),
            num_steps=len(gaps.during_s),
            ttft_s=gaps.ttft_s,
            others=watch.others,
        )
        say(f"long prompt, target {target:g}: p99 ITL {run.ratio:.2f} times; others used {run.others:.0%}")
        yield run


def _measure_scheduling(plan: Plan, say: Say) -> Iterator[SchedulingCost]:
    if "scheduling" not in plan.parts:
        return
    for cost in scheduling_costs(plan.scale.num_scheduled_steps, time.perf_counter):
        say(
            f"scheduling, {cost.num_running} running, {cost.num_waiting} waiting: {cost.scheduler_s * 1e6:.0f} µs, "
            f"of {cost.step_s * 1e6:.0f} µs of a step"
        )
        yield cost


@dataclass(slots=True)
class _Watch:
    others: float = 0.0  # of the CPUs' time, what this process did not take, or the hypervisor did


@contextlib.contextmanager
def _watching() -> Iterator[_Watch]:
    """Who else uses the CPUs meanwhile; told at the end."""
    watch, before = _Watch(), read_cpu_clock(None, time.perf_counter())
    yield watch
    share = cpu_share(before, read_cpu_clock(None, time.perf_counter()), os.cpu_count() or 1)
    watch.others = max(share.foreign, share.steal)


def _spread(values: Sequence[float]) -> Spread:
    return Spread(percentile(values, 50), percentile(values, 99))
