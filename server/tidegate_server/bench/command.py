"""`tidegate bench` itself: reads the options, makes target and workload, runs them, tells the result.

What one kind of target needs is imported when it is opened: a wrong flag is told at once.
"""

import contextlib
import functools
import shlex
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import structlog
import uvloop

from tidegate_server import log as logs
from tidegate_server.bench.driver import Ending, Measurement, measure
from tidegate_server.bench.interrupt import interruption
from tidegate_server.bench.machine import describe_machine, software_versions
from tidegate_server.bench.options import (
    BenchOptions,
    EndpointChoice,
    EngineChoice,
    read_options,
    with_kv_sequences,
)
from tidegate_server.bench.plot import check_plot, plot_timeline
from tidegate_server.bench.progress import show_progress
from tidegate_server.bench.report import Report, to_json
from tidegate_server.bench.summary import Summary, summarise
from tidegate_server.bench.table import render_table
from tidegate_server.bench.target import EngineWatch, Target
from tidegate_server.bench.traces import InvalidTrace, TraceEntry, parse_trace
from tidegate_server.bench.workloads import PlannedRequest, build_workload, describe_workload, most_tokens
from tidegate_server.errors import InvalidSetting

if TYPE_CHECKING:
    from tidegate_server.engine.launch import RunnerFactory

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A target that takes requests."""

    target: Target
    watch: EngineWatch | None
    description: str


def run(arguments: Sequence[str], environment: Mapping[str, str], load_runner: "RunnerFactory | None" = None) -> int:
    """Run the command; gives the exit code: 1 when a request failed, 130 when it was interrupted.

    Args:
        load_runner: makes our engine's runner; None: the model's own.

    Raises:
        InvalidSetting: a flag or variable is wrong.
        StartError: the target cannot be started or reached.
    """
    options = read_options(arguments, environment)
    if options.plot is not None:
        check_plot(options.plot)
    requests = build_workload(options.workload, _read_trace(options.trace))
    if not requests:
        raise InvalidSetting("--duration", "no request arrives within it")
    report = uvloop.run(_measure(options, requests, shlex.join(["tidegate", "bench", *arguments]), load_runner))
    sys.stdout.write(render_table(report.summary, report.workload, report.target, report.measurement.ending))
    _write_files(report, options)
    return _exit_code(report.summary, report.measurement.ending)


async def _measure(
    options: BenchOptions, requests: Sequence[PlannedRequest], command: str, load_runner: "RunnerFactory | None"
) -> Report:
    async with _open(options, requests, load_runner) as opened:
        date = datetime.now(UTC).isoformat(timespec="seconds")
        measurement = await _watched_run(opened, options, requests)
    return Report(
        date=date,
        command=command,
        machine=describe_machine(),
        versions=software_versions(),
        workload=describe_workload(options.workload, requests),
        target=opened.description,
        summary=summarise(measurement.records, len(requests), measurement.duration_s, measurement.samples),
        measurement=measurement,
    )


async def _watched_run(opened: _Opened, options: BenchOptions, requests: Sequence[PlannedRequest]) -> Measurement:
    progress = show_progress(len(requests), sys.stderr)
    with interruption() as interrupted, contextlib.closing(progress):
        return await measure(
            requests,
            opened.target,
            seed=options.workload.seed,
            clock=time.perf_counter,
            interrupted=interrupted,
            duration_s=options.workload.duration_s,
            watch=opened.watch,
            on_end=progress.request_ended,
        )


@contextlib.asynccontextmanager
async def _open(
    options: BenchOptions, requests: Sequence[PlannedRequest], load_runner: "RunnerFactory | None"
) -> AsyncIterator[_Opened]:
    match options.target:
        case EndpointChoice() as endpoint:
            async with _open_endpoint(endpoint, options.ignore_eos) as opened:
                yield opened
        case EngineChoice() as engine:
            async with _open_engine(engine, options.ignore_eos, most_tokens(requests), load_runner) as opened:
                yield opened
        case _:
            assert_never(options.target)


@contextlib.asynccontextmanager
async def _open_endpoint(endpoint: EndpointChoice, ignore_eos: bool) -> AsyncIterator[_Opened]:
    from tidegate_server.bench.http_target import HttpTarget
    from tidegate_server.bench.scrape import MetricsWatch

    logs.configure("text", "warning")
    watch = None if endpoint.metrics_url is None else MetricsWatch(endpoint.metrics_url)
    async with HttpTarget(
        endpoint.url,
        endpoint.model,
        vocab_size=endpoint.vocab_size,
        ignore_eos=ignore_eos,
        api_key=endpoint.api_key,
    ) as target:
        yield _Opened(target, watch, f"{endpoint.model} at {endpoint.url}")


@contextlib.asynccontextmanager
async def _open_engine(
    choice: EngineChoice, ignore_eos: bool, longest_tokens: int, load_runner: "RunnerFactory | None"
) -> AsyncIterator[_Opened]:
    """Our engine in a process of its own, as in a pod, so that measuring does not share its interpreter."""
    from tidegate_server.bench.engine_target import EngineTarget
    from tidegate_server.engine.client import EngineClient
    from tidegate_server.model_source import resolve_model

    settings = choice.settings
    logs.configure(settings.log_format, settings.log_level)
    for warning in choice.warnings:
        log.warning("unknown_setting", note=warning)
    engine_settings = settings.engine
    if choice.kv_sequences is not None:
        engine_settings = with_kv_sequences(engine_settings, choice.kv_sequences, longest_tokens)
    _say(f"loading {settings.model_uri}")
    engine = EngineClient.start(
        engine_settings,
        resolve_model(settings.model_uri),
        load_runner=load_runner,
        configure_logging=functools.partial(logs.configure, settings.log_format, settings.log_level),
    )
    try:
        ready = await engine.ready()
        yield _Opened(
            target=(target := EngineTarget(engine, ready, ignore_eos=ignore_eos)),
            watch=target,
            description=f"{settings.model_name}, {ready.device}, {ready.dtype}, kernels {ready.kernels}, "
            f"{ready.num_kv_blocks} KV blocks of {ready.block_size} tokens",
        )
    finally:
        await engine.shutdown()


def _read_trace(path: Path | None) -> Sequence[TraceEntry]:
    if path is None:
        return ()
    try:
        return parse_trace(path.read_text())
    except OSError as error:
        raise InvalidSetting("--trace", f"{path} cannot be read: {error.strerror}") from error
    except (InvalidTrace, UnicodeDecodeError) as error:
        raise InvalidSetting("--trace", f"{path} is no trace: {error}") from error


def _write_files(report: Report, options: BenchOptions) -> None:
    if options.json is not None:
        options.json.write_bytes(to_json(report))
        _say(f"written to {options.json}")
    if options.plot is not None:
        plot_timeline(report.measurement.samples, f"{report.workload}\n{report.target}", options.plot)
        _say(f"drawn in {options.plot}")


def _exit_code(summary: Summary, ending: Ending) -> int:
    if ending is Ending.INTERRUPTED:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if summary.num_failed else EXIT_OK


def _say(line: str) -> None:
    sys.stderr.write(f"bench: {line}\n")
    sys.stderr.flush()
