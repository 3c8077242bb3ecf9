"""`python -m tidegate_bench`: compare servers, time kernels, hold pod and engine against bounds, publish it all."""

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tidegate_bench import export_model, published
from tidegate_bench.compare import Plan, compare, measure_workload
from tidegate_bench.comparison import Comparison
from tidegate_bench.launch import BenchError, Server
from tidegate_bench.machine import describe_machine
from tidegate_bench.peers.llama_server import LlamaServer
from tidegate_bench.peers.openvino_genai import OpenvinoGenai
from tidegate_bench.peers.tidegate import Tidegate
from tidegate_bench.peers.vllm_cpu import VllmCpu
from tidegate_bench.report import to_markdown
from tidegate_bench.roofline import measure_roofline
from tidegate_bench.stopping import until_told_to_stop
from tidegate_bench.target import HttpTarget, first_model
from tidegate_bench.venv import cache_folder
from tidegate_bench.workloads import DESCRIPTIONS, FULL, QUICK, build_workload

DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_PEER = "vllm-cpu"  # what most would pick instead
PUBLISH = "keep the result in bench/results and write it into docs/performance.md"

SERVERS: Mapping[str, Callable[[argparse.Namespace], Server]] = {
    "tidegate": lambda arguments: Tidegate(tuple(arguments.tidegate_arg)),
    "vllm-cpu": lambda arguments: VllmCpu(tuple(arguments.peer_arg)),
    "openvino-genai": lambda arguments: OpenvinoGenai(),
    "llama-server": lambda arguments: LlamaServer(
        arguments.llama_server, arguments.llama_gguf, tuple(arguments.peer_arg)
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0, or 1 when it could not be done or a request failed.
    """
    given = sys.argv[1:] if arguments is None else arguments
    parsed = _parser().parse_args(given, argparse.Namespace(remake=remake_command(given)))
    try:
        return int(parsed.command(parsed))
    except BenchError as error:
        sys.stderr.write(f"tidegate_bench: {error}\n")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.stderr.write("tidegate_bench: stopped, and its servers with it\n")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tidegate_bench", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="measure an endpoint that is running already")
    run.add_argument("url", help="its base URL, such as http://127.0.0.1:8000")
    run.add_argument("--served-model", help="the model to ask for (default: the first it lists)")
    run.add_argument("--vocab-size", type=int, default=49152, help="prompts are token ids below it")
    _add_measuring_arguments(run)
    _add_output_arguments(run)
    run.set_defaults(command=_run)

    versus = commands.add_parser("compare", help="start servers in turn on this machine and measure each")
    peers = [name for name in SERVERS if name != "tidegate"]
    versus.add_argument(
        "--peer", action="append", choices=[*peers, "none"], help=f"may be repeated (default: {DEFAULT_PEER})"
    )
    versus.add_argument("--without-tidegate", action="store_true", help="measure the peers only")
    versus.add_argument("--model", type=Path, help="a folder of safetensors (default: the embedded model, exported)")
    versus.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    versus.add_argument("--turns", type=int, default=1, help="starts of each server: 2 gives A B A B")
    versus.add_argument("--tidegate-arg", action="append", default=[], help="one more argument for `tidegate serve`")
    versus.add_argument("--peer-arg", action="append", default=[], help="one more argument for the peer's server")
    versus.add_argument("--llama-server", type=Path, default=Path("llama-server"), help="the built binary")
    versus.add_argument("--llama-gguf", type=Path, default=Path("model.gguf"), help="the file it serves")
    _add_measuring_arguments(versus)
    _add_output_arguments(versus)
    versus.add_argument("--publish", action="store_true", help=PUBLISH)
    versus.set_defaults(command=_compare)

    kernels = commands.add_parser(
        "kernels", help="time each CPU kernel in turn with torch, beside the machine's limits"
    )
    kernels.add_argument(
        "--model", type=Path, help="whose shapes: a GGUF file or a folder (default: the embedded model)"
    )
    kernels.add_argument("--isa", help="instruction set of ours (default: the fastest of this processor)")
    kernels.add_argument("--kernels", type=_words, help="comma-separated: gemm, attention, ... (default: all)")
    kernels.add_argument("--rounds", type=int, default=7, help="of each kernel; medians are reported")
    _add_output_arguments(kernels)
    kernels.add_argument("--publish", action="store_true", help=PUBLISH)
    kernels.set_defaults(command=_kernels)

    limits = commands.add_parser("limits", help="start, memory and Python's share of our pod; few and shared CPUs")
    limits.add_argument("--parts", type=_words, help="comma-separated: memory, python, confined (default: all)")
    limits.add_argument("--serve-arg", action="append", default=[], help="one more argument for `tidegate serve`")
    _add_measuring_arguments(limits)
    _add_output_arguments(limits)
    limits.add_argument("--publish", action="store_true", help=PUBLISH)
    limits.set_defaults(command=_limits)

    engine = commands.add_parser("engine", help="our engine alone: short memory, a long prompt, what scheduling costs")
    engine.add_argument(
        "--parts", type=_words, help="comma-separated: overload, long-prompt, scheduling (default: all)"
    )
    engine.add_argument("--repeats", type=int, default=3, help="of the overload; medians are reported")
    engine.add_argument("--quick", action="store_true", help="a quarter of the requests, to see that all works")
    engine.add_argument("--seed", type=int, default=0)
    _add_output_arguments(engine)
    engine.add_argument("--publish", action="store_true", help=PUBLISH)
    engine.set_defaults(command=_engine)

    report = commands.add_parser("report", help="write the kept results into docs/performance.md")
    report.add_argument("files", nargs="*", type=Path, help="JSON files to keep first, in bench/results")
    report.set_defaults(command=_publish)

    export = commands.add_parser("export-model", help="write a GGUF model as a folder of safetensors")
    export_model.add_arguments(export)
    export.set_defaults(command=_export)
    return parser


def _add_measuring_arguments(parser: argparse.ArgumentParser) -> None:
    known = "; ".join(f"{name}: {text}" for name, text in DESCRIPTIONS.items())
    parser.add_argument("--workloads", type=_workload_names, default=("W1", "W4"), help=f"comma-separated. {known}")
    parser.add_argument("--repeats", type=int, default=3, help="of each workload; medians are reported")
    parser.add_argument("--quick", action="store_true", help="a quarter of the requests, to see that all works")
    parser.add_argument("--seed", type=int, default=0)


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, help="the JSON file (default: in the cache folder)")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _workload_names(text: str) -> tuple[str, ...]:
    names = _words(text)
    unknown = [name for name in names if name not in DESCRIPTIONS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"{text!r}: choose from {','.join(DESCRIPTIONS)}")
    return names


def remake_command(arguments: Sequence[str]) -> str:
    """What to type for the same measurement: without where the result went, and without this machine's folders."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--output":
            next(words, None)
        elif word != "--publish" and not word.startswith("--output="):
            kept.append(os.path.basename(word) if word.startswith("/") else word)
    return shlex.join(["python", "-m", "tidegate_bench", *kept])


def _run(arguments: argparse.Namespace) -> int:
    return _report(asyncio.run(until_told_to_stop(_measure_endpoint(arguments))), arguments)


async def _measure_endpoint(arguments: argparse.Namespace) -> Comparison:
    machine = describe_machine()
    model = arguments.served_model or await first_model(arguments.url)
    target = HttpTarget(arguments.url, model)
    scale = QUICK if arguments.quick else FULL
    runs = []
    for name in arguments.workloads:
        for repeat in range(arguments.repeats):
            workload = build_workload(name, scale, seed=arguments.seed, repeat=repeat, vocab_size=arguments.vocab_size)
            runs.append(await measure_workload(target, workload, arguments.url, 0, repeat, machine.num_cpus, None))
    return Comparison(
        kind="workloads",
        date=_now(),
        command=arguments.remake,
        model=model,
        dtype="as served",
        machine=machine,
        roofline=None,
        ceilings=(),
        starts=(),
        runs=tuple(runs),
    )


def _compare(arguments: argparse.Namespace) -> int:
    peers = [name for name in arguments.peer or [DEFAULT_PEER] if name != "none"]
    names = [*([] if arguments.without_tidegate else ["tidegate"]), *peers]
    if not names:
        raise BenchError("nothing to measure: leave out --without-tidegate or name a --peer")
    plan = Plan(
        servers=tuple(SERVERS[name](arguments) for name in names),
        workloads=arguments.workloads,
        model=arguments.model or _embedded_model(arguments.dtype),
        dtype=arguments.dtype,
        scale=QUICK if arguments.quick else FULL,
        repeats=arguments.repeats,
        turns=arguments.turns,
        seed=arguments.seed,
        log_folder=cache_folder() / "logs",
        command=arguments.remake,
    )
    return _report(asyncio.run(until_told_to_stop(compare(plan, _say))), arguments)


def _kernels(arguments: argparse.Namespace) -> int:
    # torch's threads wait as they do in our server: spinning, they would take the CPUs from whoever is timed next.
    from tidegate_server.engine.process import engine_environment

    os.environ.update(engine_environment(os.environ))
    from tidegate_bench.kernels import measure  # brings torch, which the other commands do without
    from tidegate_bench.kernels.report import to_markdown
    from tidegate_bench.kernels.timing import Rounds

    names = arguments.kernels or tuple(measure.CASES)
    if unknown := [name for name in names if name not in measure.CASES]:
        raise BenchError(f"--kernels {','.join(unknown)}: choose from {','.join(measure.CASES)}")
    plan = measure.Plan(
        model=arguments.model or export_model.builtin_gguf(),
        isa=arguments.isa,
        kernels=names,
        rounds=Rounds(num_rounds=arguments.rounds),
        command=arguments.remake,
    )
    run = measure.measure_kernels(plan, _say, measure_roofline)
    _write(published.to_json(run), to_markdown(run), run.date, arguments)
    return 0


def _limits(arguments: argparse.Namespace) -> int:
    from tidegate_bench.limits import measure
    from tidegate_bench.limits.report import to_markdown

    parts = arguments.parts or measure.PARTS
    if unknown := [name for name in parts if name not in measure.PARTS]:
        raise BenchError(f"--parts {','.join(unknown)}: choose from {','.join(measure.PARTS)}")
    plan = measure.Plan(
        parts=parts,
        serve_arguments=tuple(arguments.serve_arg),
        workloads=arguments.workloads,
        scale=QUICK if arguments.quick else FULL,
        repeats=arguments.repeats,
        seed=arguments.seed,
        command=arguments.remake,
        log_folder=cache_folder() / "logs",
    )
    run = asyncio.run(until_told_to_stop(measure.measure_limits(plan, _say)))
    _write(published.to_json(run), to_markdown(run), run.date, arguments)
    return 0


def _engine(arguments: argparse.Namespace) -> int:
    # As in the engine's own process: see `_kernels`.
    from tidegate_server.engine.process import engine_environment

    os.environ.update(engine_environment(os.environ))
    from tidegate_bench.engine import measure  # brings torch
    from tidegate_bench.engine.report import to_markdown
    from tidegate_server import log as logs

    parts = arguments.parts or measure.PARTS
    if unknown := [name for name in parts if name not in measure.PARTS]:
        raise BenchError(f"--parts {','.join(unknown)}: choose from {','.join(measure.PARTS)}")
    logs.configure("text", "warning")
    plan = measure.Plan(
        parts=parts,
        scale=measure.QUICK if arguments.quick else measure.FULL,
        repeats=arguments.repeats,
        seed=arguments.seed,
        command=arguments.remake,
    )
    run = measure.measure_engine(plan, _say)
    _write(published.to_json(run), to_markdown(run), run.date, arguments)
    return 0


def _publish(arguments: argparse.Namespace) -> int:
    for file in published.keep(arguments.files):
        _say(f"kept as {file}")
    published.write_page()
    _say(f"written: {published.PAGE}")
    return 0


def _embedded_model(dtype: str) -> Path:
    folder = cache_folder() / "models" / f"{DEFAULT_MODEL}-{dtype}"
    return export_model.export_model(export_model.builtin_gguf, folder, dtype)


def _export(arguments: argparse.Namespace) -> int:
    gguf = arguments.gguf
    find = (lambda: gguf) if gguf is not None else export_model.builtin_gguf
    _say(f"exported to {export_model.export_model(find, arguments.folder, arguments.dtype)}")
    return 0


def _report(comparison: Comparison, arguments: argparse.Namespace) -> int:
    _write(published.to_json(comparison), to_markdown(comparison), comparison.date, arguments)
    return 1 if any(run.summary.num_failed for run in comparison.runs) else 0


def _write(json: str, markdown: str, date: str, arguments: argparse.Namespace) -> None:
    """Show a result, leave it in a file, and publish it if that was asked for."""
    stamp = date.replace(":", "").replace("+0000", "Z")
    output = arguments.output or cache_folder() / "results" / f"{stamp}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json)
    sys.stdout.write(markdown)
    _say(f"written to {output}")
    if getattr(arguments, "publish", False):
        _publish(argparse.Namespace(files=[output]))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
