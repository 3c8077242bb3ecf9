"""A run over the kernels as Markdown."""

from collections.abc import Iterator, Sequence

from tidegate_bench.facts import GB, NOISY_SHARE, facts, is_noisy
from tidegate_bench.kernels.result import KernelRun, Line, lines
from tidegate_bench.table import markdown_table

PRODUCTS = "gemm"
HEADER = ("kernel", "use", "rows", "data", "ours µs", "torch µs", "torch / ours", "limit µs", "of the limit", "set by")


def to_markdown(run: KernelRun) -> str:
    """The facts, a table of the products with a column for each number of rows, and one of the other kernels."""
    parts = ["\n".join(_facts(run))]
    products = [line for line in lines(run) if line.kernel == PRODUCTS]
    others = [line for line in lines(run) if line.kernel != PRODUCTS]
    if products:
        parts.append("Products: µs, share of the limit (m: of memory, a: of arithmetic), torch's time over ours.")
        parts.append(_product_table(products))
    if others:
        parts.append("The other kernels:")
        parts.append(markdown_table(HEADER, [_cells(line) for line in others]))
    if is_noisy(run.cpu):
        parts.append(
            f"**Others used {run.cpu.foreign:.0%} of the CPUs**, and the hypervisor took {run.cpu.steal:.0%}; "
            f"{NOISY_SHARE:.0%} would be too much. Repeat on a quiet machine before quoting a number."
        )
    return "\n\n".join(parts) + "\n"


def _facts(run: KernelRun) -> Iterator[str]:
    yield from facts(run.date, run.command, run.machine, run.versions)
    yield f"- kernels: {run.isa}, {run.num_threads} threads, shapes of {run.model}"
    gemm = ", ".join(f"{dtype} GEMM {speed / GB:.0f} GFLOP/s" for dtype, speed in run.limits.flop_per_s.items())
    yield f"- limits, measured in the same run with torch: reads {run.limits.read_bytes_per_s / GB:.1f} GB/s, {gemm}"
    yield f"- a kernel with nothing to compute, called from Python: {_micros(run.call_s)} µs"


def _product_table(products: Sequence[Line]) -> str:
    rows = sorted({line.rows for line in products})
    by_use: dict[tuple[str, str], dict[int, Line]] = {}
    for line in products:
        by_use.setdefault((line.data, line.what), {})[line.rows] = line
    header = ("weights", "product", *(f"{count} {'row' if count == 1 else 'rows'}" for count in rows))
    return markdown_table(
        header,
        [
            (data, what, *(_product(found[count]) if count in found else "" for count in rows))
            for (data, what), found in by_use.items()
        ],
    )


def _product(line: Line) -> str:
    return f"{_micros(line.ours_s)}, {_of_limit(line)}{line.bound[0]}, {_ratio(line)}"


def _cells(line: Line) -> Sequence[str]:
    return (
        line.kernel,
        line.what,
        str(line.rows),
        line.data,
        _micros(line.ours_s),
        _micros(line.torch_s),
        _ratio(line),
        _micros(line.floor_s),
        _of_limit(line),
        line.bound,
    )


def _ratio(line: Line) -> str:
    return f"{line.torch_s / line.ours_s:.1f}x"


def _of_limit(line: Line) -> str:
    return f"{line.floor_s / line.ours_s:.0%}"


def _micros(seconds: float) -> str:
    """Three figures, as microseconds."""
    micros = seconds * 1e6
    return f"{micros:.0f}" if micros >= 100 else f"{micros:.3g}"
