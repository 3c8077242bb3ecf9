"""Small comparisons for tests."""

from tidegate_bench.comparison import Ceiling, Comparison, ServerStart, WorkloadRun
from tidegate_bench.machine import CpuShare, Machine
from tidegate_bench.roofline import Roofline
from tidegate_bench.summary import Spread, Summary

MACHINE = Machine("Some CPU", ("avx2", "fma"), 2, 16_000_000_000, "6.1", "3.11.7")
QUIET = CpuShare(server=0.9, generator=0.02, foreign=0.01, steal=0.0)


def summary(output_tokens_per_s: float = 100.0, *, ttft_ms: float = 50.0, failed: int = 0) -> Summary:
    return Summary(
        num_requests=4,
        num_failed=failed,
        num_prompt_tokens=40,
        num_output_tokens=400,
        duration_s=400 / output_tokens_per_s,
        output_tokens_per_s=output_tokens_per_s,
        decode_tokens_per_s=None,
        ttft_s=Spread(ttft_ms / 1000, ttft_ms / 500),
        tpot_s=None,
        itl_s=None,
        e2e_s=None,
        generator_lag_s=0.0,
        errors=("HTTP 500",) if failed else (),
    )


def run(server: str, repeat: int, measured: Summary, cpu: CpuShare | None = QUIET, workload: str = "W1") -> WorkloadRun:
    return WorkloadRun(server, workload, 0, repeat, measured, cpu)


def start(server: str, ready_s: float, *, kv_tokens: int = 24_576, rss_mb: int = 1000) -> ServerStart:
    return ServerStart(server, "1.2.3", "cpu-avx2", 0, kv_tokens, ready_s, rss_mb * 1_000_000, 900_000_000)


def comparison(*runs: WorkloadRun, starts: tuple[ServerStart, ...] = ()) -> Comparison:
    return Comparison(
        kind="workloads",
        command="python -m tidegate_bench compare",
        date="2026-01-02T03:04:05+00:00",
        model="tiny",
        dtype="float32",
        machine=MACHINE,
        roofline=Roofline(30e9, 140e9, "2.15.0"),
        ceilings=(Ceiling("W1", 200.0, 55.0),),
        starts=starts,
        runs=runs,
    )
