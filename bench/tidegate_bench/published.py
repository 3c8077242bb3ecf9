"""The results that `docs/performance.md` shows: JSON files kept in `bench/results`, and the page written from them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tidegate_bench.comparison import Comparison
from tidegate_bench.engine import report as engine_report
from tidegate_bench.engine.result import EngineRun
from tidegate_bench.kernels import report as kernel_report
from tidegate_bench.kernels.result import KernelRun
from tidegate_bench.launch import BenchError
from tidegate_bench.limits import report as limits_report
from tidegate_bench.limits.result import LimitsRun
from tidegate_bench.machine import best_isa
from tidegate_bench.report import to_markdown

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "bench" / "results"
PAGE = REPOSITORY / "docs" / "performance.md"

NONE_YET = "None kept yet.\n"


@dataclass(frozen=True, slots=True)
class _Kind:
    """One sort of result, and its part of the page."""

    type: type[Any]
    name: Callable[[Any], str]  # of the file; a later result of that name takes its place
    title: Callable[[Any], str]
    to_markdown: Callable[[Any], str]


_KINDS: Mapping[str, _Kind] = {
    "workloads": _Kind(
        Comparison,
        lambda run: f"workloads-{best_isa(run.machine)}-{run.dtype}",
        lambda run: f"{run.machine.cpu}, {run.dtype}",
        to_markdown,
    ),
    "kernels": _Kind(
        KernelRun,
        lambda run: f"kernels-{run.isa}",
        lambda run: f"{run.machine.cpu}, {run.isa}",
        kernel_report.to_markdown,
    ),
    "limits": _Kind(
        LimitsRun,
        lambda run: f"limits-{best_isa(run.machine)}",
        lambda run: run.machine.cpu,
        limits_report.to_markdown,
    ),
    "engine": _Kind(
        EngineRun,
        lambda run: f"engine-{best_isa(run.machine)}",
        lambda run: run.machine.cpu,
        engine_report.to_markdown,
    ),
}


def to_json(run: Comparison | KernelRun | LimitsRun | EngineRun) -> str:
    """All of it, for `read`."""
    return msgspec.json.format(msgspec.json.encode(run), indent=2).decode() + "\n"


def keep(files: Sequence[Path], results: Path = RESULTS) -> list[Path]:
    """Put results among those that the page shows, each in place of an earlier one of its kind and machine.

    Raises:
        BenchError: a file is no result.
    """
    kept = []
    for file in files:
        kind, run = _read(file)
        kept.append(results / f"{kind.name(run)}.json")
        results.mkdir(parents=True, exist_ok=True)
        kept[-1].write_text(to_json(run))
    return kept


def write_page(results: Path = RESULTS, page: Path = PAGE) -> None:
    """Write every kept result into its section of the page; the rest of the page stays as it is.

    Raises:
        BenchError: a file is no result, or the page lacks a section.
    """
    page.write_text(rendered(page.read_text(), results))


def rendered(text: str, results: Path) -> str:
    """The page's text with its sections written anew."""
    sections: dict[str, list[str]] = {name: [] for name in _KINDS}
    for file in sorted(results.glob("*.json")):
        kind, run = _read(file)
        sections[run.kind].append(f"### {kind.title(run)}\n\n{kind.to_markdown(run)}")
    for name, parts in sections.items():
        begin, end = markers(name)
        content = "\n".join(parts) or NONE_YET
        # A function for the replacement: a table's backslashes would be read as groups.
        text, count = re.subn(
            f"{re.escape(begin)}.*?{re.escape(end)}",
            lambda _, content=content, begin=begin, end=end: f"{begin}\n\n{content}\n{end}",  # type: ignore[misc]
            text,
            flags=re.DOTALL,
        )
        if count != 1:
            raise BenchError(f"the page has {count} sections between {begin!r} and {end!r} instead of one")
    return text


def markers(kind: str) -> tuple[str, str]:
    """The lines between which a kind's results stand."""
    return f"<!-- {kind}: written by `python -m tidegate_bench report` -->", f"<!-- end of {kind} -->"


def _read(file: Path) -> tuple[_Kind, Any]:
    try:
        content = file.read_bytes()
        kind = _KINDS[msgspec.json.decode(content)["kind"]]
        return kind, msgspec.json.decode(content, type=kind.type)
    except (OSError, KeyError, TypeError, msgspec.MsgspecError) as failure:
        raise BenchError(f"{file} is no result of this version of the benchmark: {failure}") from None
