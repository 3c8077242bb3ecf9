"""A run over our engine as Markdown: the facts, then for each part what was asked, what came out, and a table."""

from collections.abc import Iterator

from tidegate_bench.engine.result import (
    ITL_RATIO,
    MEAN_PREEMPTIONS,
    MOST_PREEMPTIONS,
    THROUGHPUT_KEPT,
    EngineRun,
    LongPromptRun,
    Overload,
    SchedulingCost,
    overloads,
)
from tidegate_bench.facts import MB, NOISY_SHARE, disturbed_sentence, facts
from tidegate_bench.table import markdown_table

OVERLOAD = (
    "scheduling",
    "output tok/s",
    "of ample",
    "preemptions a request",
    "most of one",
    "recomputed tokens",
    "swapped MB",
    "completed",
    "kept",
    "others' CPU",
)
LONG_PROMPT = (
    "step time target",
    "alone: ITL p50 ms",
    "p99 ms",
    "during: ITL p50 ms",
    "p99 ms",
    "p99 to p99",
    "prompt's TTFT s",
    "steps",
    "kept",
    "others' CPU",
)
SCHEDULING = ("running", "waiting", "schedule + update µs", "whole step µs")


def to_markdown(run: EngineRun) -> str:
    """The facts, and the parts that were measured."""
    parts = ["\n".join(_facts(run))]
    if lines := list(overloads(run)):
        parts.append(_overload_sentence(run, lines))
        parts.append(markdown_table(OVERLOAD, [_overload_cells(line) for line in lines]))
    if run.long_prompt:
        parts.append(_long_prompt_sentence(run))
        parts.append(markdown_table(LONG_PROMPT, [_long_prompt_cells(one) for one in run.long_prompt]))
    if run.scheduling:
        parts.append(_scheduling_sentence(run.scheduling))
        parts.append(markdown_table(SCHEDULING, [_scheduling_cells(cost) for cost in run.scheduling]))
    measured = [*(one.others for one in run.overload), *(one.others for one in run.long_prompt)]
    noisy = [others for others in measured if others > NOISY_SHARE]
    if noisy:
        parts.append(disturbed_sentence(len(noisy), len(measured)))
    return "\n\n".join(parts) + "\n"


def _facts(run: EngineRun) -> Iterator[str]:
    yield from facts(run.date, run.command, run.machine, run.versions)
    yield f"- model: {run.model}, {run.dtype}, kernels {run.kernels}; the engine in the benchmark's own process"
    if run.overload:
        yield f"- {run.overload_workload}; the short memory holds {run.overload_kv_tokens} tokens"


def _overload_sentence(run: EngineRun, lines: list[Overload]) -> str:
    asked = [line for line in lines if line.is_asked]
    failed = [line.condition for line in asked if not line.is_kept]
    came_out = "Each keeps it" if not failed else f"**Not kept with {', '.join(failed)}**"
    mean = max((line.mean_preemptions for line in asked), default=0.0)
    most = max((line.most_preemptions for line in asked), default=0)
    return (
        f"With short memory, asked of each way to preempt: all requests complete, with {MEAN_PREEMPTIONS:g} preemption "
        f"a request at most on average and {MOST_PREEMPTIONS} of any one, and {THROUGHPUT_KEPT:.0%} of the throughput "
        f"with ample memory. {came_out}: {mean:.2f} at most on average, {most} of any one{_least_ratio(asked)}."
    )


def _least_ratio(lines: list[Overload]) -> str:
    ratios = [line.ratio for line in lines if line.ratio is not None]
    return f", {min(ratios):.0%} of the throughput at least" if ratios else ""


def _overload_cells(line: Overload) -> tuple[str, ...]:
    return (
        line.condition,
        f"{line.output_tokens_per_s:.1f}",
        "" if line.ratio is None else f"{line.ratio:.0%}",
        f"{line.mean_preemptions:.2f}",
        f"{line.most_preemptions}",
        f"{line.recomputed_tokens:.0f}",
        f"{line.swapped_bytes / MB:.0f}",
        f"{line.num_completed}/{line.num_requests}",
        _kept(line.is_kept) if line.is_asked or not line.is_kept else "",
        f"{line.others:.0%}",
    )


def _long_prompt_sentence(run: EngineRun) -> str:
    came_out = ", ".join(f"{one.ratio:.2f} times with {_target(one)}" for one in run.long_prompt if one.is_default)
    return (
        f"A prompt of {run.num_long_prompt_tokens} tokens arrives among {run.num_decodes} requests that decode; asked "
        f"with the default target: the p99 gap between two of their tokens is at most {ITL_RATIO:g} times as long as "
        f"without the prompt. It was {came_out or 'not measured'}."
    )


def _long_prompt_cells(one: LongPromptRun) -> tuple[str, ...]:
    return (
        _target(one),
        f"{one.undisturbed_itl_s.p50 * 1e3:.1f}",
        f"{one.undisturbed_itl_s.p99 * 1e3:.1f}",
        f"{one.during_itl_s.p50 * 1e3:.1f}",
        f"{one.during_itl_s.p99 * 1e3:.1f}",
        f"{one.ratio:.2f}x",
        f"{one.ttft_s:.1f}",
        f"{one.num_steps}",
        _kept(one.is_kept) if one.is_default else "",
        f"{one.others:.0%}",
    )


def _target(one: LongPromptRun) -> str:
    name = f"{one.step_time_target:g}" if one.step_time_target else "none"
    return f"{name} (default)" if one.is_default else name


def _scheduling_sentence(costs: tuple[SchedulingCost, ...]) -> str:
    worst = max(costs, key=lambda cost: cost.step_s)
    return (
        "What a step that only decodes costs in Python, on a runner that computes nothing; what is asked is its share "
        f"of a pod's step, above. The most is {worst.step_s * 1e3:.2f} ms, with {worst.num_running} running and "
        f"{worst.num_waiting} waiting."
    )


def _scheduling_cells(cost: SchedulingCost) -> tuple[str, ...]:
    return (
        f"{cost.num_running}",
        f"{cost.num_waiting}",
        f"{cost.scheduler_s * 1e6:.0f}",
        f"{cost.step_s * 1e6:.0f}",
    )


def _kept(is_kept: bool) -> str:
    return "yes" if is_kept else "**no**"
