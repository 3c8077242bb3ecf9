"""A run over the pod's bounds as Markdown."""

from collections.abc import Iterator

from tidegate_bench.facts import NOISY_SHARE, disturbed_sentence, facts
from tidegate_bench.limits.result import LimitsRun, Throughput, bounds, throughputs
from tidegate_bench.table import markdown_table

BOUNDS = ("bound", "measured", "at most", "kept")
THROUGHPUTS = ("workload", "condition", "output tok/s", "of undisturbed", "CPU left", "at least", "kept", "others' CPU")


def to_markdown(run: LimitsRun) -> str:
    """The facts, one table of bounds, one of throughput under each condition."""
    parts = ["\n".join(_facts(run))]
    if rows := [(bound.what, bound.measured, bound.allowed, _kept(bound.is_kept)) for bound in bounds(run)]:
        parts.append(markdown_table(BOUNDS, rows))
    lines = list(throughputs(run))
    if lines:
        parts.append(markdown_table(THROUGHPUTS, [_cells(line) for line in lines]))
    parts.extend(f"Not measured here: {sentence}" for sentence in run.not_measured)
    measured = [
        *(start.others for start in run.starts),
        *(python.others for python in run.python),
        *(confined.others for confined in run.confined),
    ]
    noisy = [others for others in measured if others > NOISY_SHARE]
    if noisy:
        parts.append(disturbed_sentence(len(noisy), len(measured)))
    return "\n\n".join(parts) + "\n"


def _facts(run: LimitsRun) -> Iterator[str]:
    yield from facts(run.date, run.command, run.machine, run.versions)
    arguments = " ".join(run.serve_arguments)
    yield f"- pod: the embedded model, {f'`{arguments}`' if arguments else 'everything else as it comes'}"
    if kernels := dict.fromkeys(start.kernels for start in run.starts):
        yield f"- kernels: {', '.join(kernels)}"
    for python in run.python:
        yield (
            f"- with {python.num_requests} decoding, the API process took {python.api_cpu:.0%} of the CPUs "
            f"({python.num_steps} steps seen)"
        )


def _cells(line: Throughput) -> tuple[str, ...]:
    is_base = line.ratio == 1.0 and line.share_left == 1.0
    return (
        line.workload,
        line.condition,
        f"{line.output_tokens_per_s:.1f}",
        "" if is_base else f"{line.ratio:.0%}",
        f"{line.share_left:.0%}",
        "" if is_base else f"{line.floor:.0%}",
        "" if is_base else _kept(line.is_kept),
        f"{line.others:.0%}",
    )


def _kept(is_kept: bool) -> str:
    return "yes" if is_kept else "**no**"
