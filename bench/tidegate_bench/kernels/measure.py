"""Times every kernel of a model's decoder in turn with torch; nothing here is imported before it is asked for."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from tidegate_bench.kernels.attention import attention_cases, rope_store_cases
from tidegate_bench.kernels.case import Case
from tidegate_bench.kernels.formats import formats_of
from tidegate_bench.kernels.products import product_cases, products_of
from tidegate_bench.kernels.result import KernelRun, KernelTime, Limits
from tidegate_bench.kernels.row_ops import embed_cases, rms_norm_cases
from tidegate_bench.kernels.sampling import argmax_cases, draw_cases, logprobs_cases
from tidegate_bench.kernels.timing import Contestant, Rounds, median_times_s
from tidegate_bench.launch import BenchError
from tidegate_bench.machine import cpu_share, describe_machine, read_cpu_clock
from tidegate_bench.roofline import Roofline
from tidegate_kernels.cpu.library import Library, load_library, missing_because
from tidegate_kernels.cpu.structs import TgRmsNorm
from tidegate_server.errors import StartError
from tidegate_server.gguf_file import open_gguf
from tidegate_server.model.config import ModelConfig
from tidegate_server.model.gguf_config import read_gguf_config
from tidegate_server.model.hf_config import read_hf_config
from tidegate_server.model.host_limits import usable_cpus
from tidegate_server.model.placement import cpus_to_pin

Say = Callable[[str], None]
FindLimits = Callable[[str, int], Roofline]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    model: Path  # a GGUF file or a folder with a config.json: only its shapes count
    isa: str | None  # None: the fastest of this processor
    kernels: tuple[str, ...]  # those of `CASES`
    rounds: Rounds
    command: str


@torch.inference_mode()
def measure_kernels(plan: Plan, say: Say, find_limits: FindLimits) -> KernelRun:
    """Run the plan.

    Args:
        say: gets a line on each case.
        find_limits: the machine's own, for a dtype and a number of threads.

    Raises:
        BenchError: there is no library here, or one of its results is not torch's.
    """
    config = read_config(plan.model)
    library = load_library()
    if library is None:
        raise BenchError(f"there are no CPU kernels to measure: {missing_because()}")
    num_threads = usable_cpus()
    allowed = os.sched_getaffinity(0)
    torch.set_num_threads(num_threads)
    torch.ones(1 << 20).sum()  # torch's threads start now, before this one is bound to a CPU, which they would inherit
    try:
        isa = library.start(plan.isa, num_threads, cpus_to_pin(num_threads))
    except ValueError as error:
        raise BenchError(f"--isa: {error}") from None
    try:
        pinned = os.sched_getaffinity(0)
        os.sched_setaffinity(0, allowed)  # for the probe of the limits, which is a child
        machine = describe_machine()
        say(f"machine: {machine.cpu}, {num_threads} threads, kernels for {isa}")
        dtypes = sorted({peak for form in formats_of(library) for peak in form.peaks})
        say("measuring the machine's own limits")
        before = [find_limits(dtype, num_threads) for dtype in dtypes]
        clock = read_cpu_clock(None, time.perf_counter())
        times = tuple(_time(case, plan.rounds, pinned, allowed, say) for case in cases(library, config, plan.kernels))
        call_s = _time_of_a_call(library, plan.rounds, pinned)
        share = cpu_share(clock, read_cpu_clock(None, time.perf_counter()), machine.num_cpus)
        os.sched_setaffinity(0, allowed)
        after = [find_limits(dtype, num_threads) for dtype in dtypes]
    finally:
        os.sched_setaffinity(0, allowed)
        library.stop()
    return KernelRun(
        kind="kernels",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=plan.command,
        versions={"tidegate": version("tidegate"), "torch": str(torch.__version__)},
        model=plan.model.name.removesuffix(".gguf"),
        num_layers=config.num_layers,
        machine=machine,
        isa=isa,
        num_threads=num_threads,
        limits=best_limits(dtypes, before, after),
        cpu=share,
        call_s=call_s,
        times=times,
    )


def read_config(model: Path) -> ModelConfig:
    """The shapes of a checkpoint.

    Raises:
        BenchError: it cannot be read.
    """
    try:
        return read_gguf_config(open_gguf(model)) if model.is_file() else read_hf_config(model)
    except StartError as error:
        raise BenchError(f"--model {model}: {error}") from None


def cases(library: Library, config: ModelConfig, kernels: Sequence[str]) -> Iterator[Case]:
    """Every case of the named kernels; each is done with before the next is asked for, so that memory stays small."""
    for name in kernels:
        yield from CASES[name](library, config)


def _gemm(library: Library, config: ModelConfig) -> Iterator[Case]:
    for form in formats_of(library):
        for product in products_of(config):
            if form.takes(library, product.num_inputs):
                yield from product_cases(library, product, form)


def _embed(library: Library, config: ModelConfig) -> Iterator[Case]:
    for form in formats_of(library):
        if form.takes(library, config.hidden_size):
            yield from embed_cases(library, config, form)


CASES: dict[str, Callable[[Library, ModelConfig], Iterator[Case]]] = {
    "gemm": _gemm,
    "attention": attention_cases,
    "rope_store": rope_store_cases,
    "rms_norm": rms_norm_cases,
    "embed": _embed,
    "argmax": argmax_cases,
    "draw": draw_cases,
    "logprobs": logprobs_cases,
}


def best_limits(dtypes: Sequence[str], before: Sequence[Roofline], after: Sequence[Roofline]) -> Limits:
    """The highest of all measurements of each limit; one of each sequence for a dtype."""
    best = {dtype: one.best_of(other) for dtype, one, other in zip(dtypes, before, after, strict=True)}
    return Limits(
        read_bytes_per_s=max(roofline.read_bytes_per_s for roofline in best.values()),
        flop_per_s={dtype: roofline.gemm_flop_per_s for dtype, roofline in best.items()},
    )


def _time(case: Case, rounds: Rounds, pinned: set[int], allowed: set[int], say: Say) -> KernelTime:
    os.sched_setaffinity(0, pinned)
    check(case)
    ours_s, torch_s = median_times_s(
        [
            Contestant(case.ours, lambda: os.sched_setaffinity(0, pinned)),
            Contestant(case.torch, lambda: os.sched_setaffinity(0, allowed)),
        ],
        rounds,
    )
    say(f"{case.kernel}, {case.what}, {case.rows} rows, {case.data}: {ours_s * 1e6:.1f} µs, torch {torch_s * 1e6:.1f}")
    return KernelTime(
        kernel=case.kernel,
        what=case.what,
        rows=case.rows,
        data=case.data,
        moved_bytes=case.moved_bytes,
        flop=case.flop,
        peaks=case.peaks,
        ours_s=ours_s,
        torch_s=torch_s,
    )


def check(case: Case) -> None:
    """See that both compute the same thing: a wrong result has no speed.

    Raises:
        BenchError: they do not.
    """
    ours, plain = case.ours().double(), case.torch().double()
    farthest = (ours - plain).abs().max().item()
    allowed = case.tolerance * plain.abs().max().item()
    if not farthest <= allowed:
        raise BenchError(
            f"{case.kernel}, {case.what}, {case.rows} rows, {case.data}: "
            f"differs from torch by {farthest:.3g}, more than {allowed:.3g}"
        )


def _time_of_a_call(library: Library, rounds: Rounds, pinned: set[int]) -> float:
    nothing = TgRmsNorm(m=0, n=1)
    [call_s] = median_times_s(
        [Contestant(lambda: library.run_rms_norm(nothing), lambda: os.sched_setaffinity(0, pinned))], rounds
    )
    return call_s
