"""Small runs over the engine for tests."""

from collections.abc import Sequence

from tests.bench.comparisons import MACHINE
from tidegate_bench.engine.result import EngineRun, LongPromptRun, OverloadRun, SchedulingCost
from tidegate_bench.summary import Spread


def overload(
    condition: str,
    tokens_per_s: float = 100.0,
    *,
    repeat: int = 0,
    num_completed: int = 64,
    num_preemptions: int = 8,
    most_preemptions: int = 1,
    others: float = 0.01,
) -> OverloadRun:
    return OverloadRun(
        condition=condition,
        repeat=repeat,
        num_requests=64,
        num_completed=num_completed,
        output_tokens_per_s=tokens_per_s,
        num_preemptions=num_preemptions,
        most_preemptions=most_preemptions,
        recomputed_tokens=500,
        swapped_bytes=3_000_000,
        others=others,
    )


def long_prompt(target: float, p99_s: float, *, is_default: bool = False) -> LongPromptRun:
    return LongPromptRun(
        step_time_target=target,
        is_default=is_default,
        undisturbed_itl_s=Spread(0.09, 0.1),
        during_itl_s=Spread(0.15, p99_s),
        num_steps=160,
        ttft_s=27.0,
        others=0.01,
    )


def engine_run(
    *runs: OverloadRun, long_prompts: Sequence[LongPromptRun] = (), costs: Sequence[SchedulingCost] = ()
) -> EngineRun:
    return EngineRun(
        kind="engine",
        date="2026-01-02T03:04:05+00:00",
        command="python -m tidegate_bench engine",
        versions={"tidegate": "1.2.3"},
        machine=MACHINE,
        model="some-model",
        dtype="bfloat16",
        kernels="cpu-avx2",
        overload_workload="overload: 64 requests",
        overload_kv_tokens=1280,
        overload=tuple(runs),
        num_decodes=16,
        num_long_prompt_tokens=4000,
        long_prompt=tuple(long_prompts),
        scheduling=tuple(costs),
    )
