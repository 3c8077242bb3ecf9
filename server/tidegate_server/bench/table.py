"""A summary as the table that ends a run."""

from collections.abc import Iterator, Mapping, Sequence

from tidegate_server.bench.engine_sample import EngineSummary
from tidegate_server.bench.summary import Distribution, Summary

UNKNOWN = "-"
_NAME_WIDTH = 22
_NUMBER_WIDTH = 10


def render_table(summary: Summary, workload: str, target: str, ending: str) -> str:
    """The table, with a line break at its end.

    Args:
        workload, target: what was measured, in a line each.
        ending: how the run ended.
    """
    return "".join(line.rstrip() + "\n" for line in _lines(summary, workload, target, ending))


def _lines(summary: Summary, workload: str, target: str, ending: str) -> Iterator[str]:
    yield _row("workload", workload)
    yield _row("target", target)
    yield _row("duration", f"{summary.duration_s:.2f} s, {ending}")
    yield _row("requests", _requests(summary))
    yield ""
    yield _row("throughput", _cells(["requests/s", "input tok/s", "output tok/s"], width=14))
    rates = (summary.requests_per_s, summary.input_tokens_per_s, summary.output_tokens_per_s)
    yield _row("", _cells([f"{rate:.2f}" for rate in rates], width=14))
    yield ""
    yield _row("ms", _cells(["mean", "p50", "p90", "p99"]))
    yield _row("TTFT", _milliseconds(summary.ttft_s))
    yield _row("TPOT", _milliseconds(summary.tpot_s))
    yield _row("ITL", _milliseconds(summary.itl_s))
    yield _row("end to end", _milliseconds(summary.e2e_s))
    yield ""
    yield from _engine_rows(summary.engine)
    yield _row("sending delay", f"{summary.max_send_delay_s * 1000:.1f} ms at most")
    yield from _error_rows(summary.errors)


def _requests(summary: Summary) -> str:
    counts = [f"{summary.num_finished} finished", f"{summary.num_failed} failed"]
    if summary.num_unfinished:
        counts.append(f"{summary.num_unfinished} unfinished")
    if summary.num_unsent:
        counts.append(f"{summary.num_unsent} not sent")
    return ", ".join(counts)


def _engine_rows(engine: EngineSummary | None) -> Iterator[str]:
    yield _row("preemptions", UNKNOWN if engine is None else _preemptions(engine.preemptions))
    yield _row("prefix-cache hits", UNKNOWN if engine is None else _prefix_hits(engine))
    yield _row("peak KV blocks", UNKNOWN if engine is None else _peak_blocks(engine))
    yield _row("peak running, waiting", UNKNOWN if engine is None else _peak_requests(engine))


def _preemptions(by_kind: Mapping[str, int] | None) -> str:
    if by_kind is None:
        return UNKNOWN
    return ", ".join(f"{count} {kind}" for kind, count in sorted(by_kind.items()) if count) or "0"


def _prefix_hits(engine: EngineSummary) -> str:
    ratio = engine.prefix_hit_ratio
    if ratio is None:
        return UNKNOWN
    return f"{ratio:.1%} of {engine.prefix_query_tokens} prompt tokens"


def _peak_blocks(engine: EngineSummary) -> str:
    ratio = engine.peak_kv_usage_ratio
    if ratio is None:
        return UNKNOWN
    if engine.peak_kv_blocks is None:
        return f"{ratio:.1%}"
    return f"{engine.peak_kv_blocks} of {engine.num_kv_blocks} ({ratio:.1%})"


def _peak_requests(engine: EngineSummary) -> str:
    peaks = (engine.peak_running, engine.peak_waiting)
    return ", ".join(UNKNOWN if peak is None else str(peak) for peak in peaks)


def _error_rows(errors: Mapping[str, int]) -> Iterator[str]:
    if not errors:
        yield _row("errors", "none")
    name = "errors"
    for error, count in errors.items():
        yield _row(name, f"{count} x {error}")
        name = ""


def _milliseconds(spread: Distribution | None) -> str:
    if spread is None:
        return _cells([UNKNOWN] * 4)
    return _cells([f"{value * 1000:.1f}" for value in (spread.mean, spread.p50, spread.p90, spread.p99)])


def _cells(texts: Sequence[str], width: int = _NUMBER_WIDTH) -> str:
    return "".join(text.rjust(width) for text in texts)


def _row(name: str, value: str) -> str:
    return name.ljust(_NAME_WIDTH) + value
