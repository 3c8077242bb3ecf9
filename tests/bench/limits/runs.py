"""Small runs over the pod's bounds for tests."""

from collections.abc import Sequence

from tests.bench.comparisons import MACHINE
from tidegate_bench.limits.result import UNDISTURBED, ConfinedRun, LimitsRun, PodMemory, PythonShare, Start

GB = 1_000_000_000
SMALL = PodMemory(kv_bytes=2 << 30, kv_resident_bytes=GB, loading_peak_bytes=GB, serving_bytes=2 * GB)


def confined(
    condition: str = UNDISTURBED,
    tokens_per_s: float = 100.0,
    *,
    workload: str = "W1",
    repeat: int = 0,
    share_left: float = 1.0,
    others: float = 0.01,
) -> ConfinedRun:
    return ConfinedRun(condition, workload, repeat, tokens_per_s, share_left, others)


def limits_run(
    *runs: ConfinedRun,
    ready_s: Sequence[float] = (),
    memory: PodMemory | None = None,
    python: Sequence[PythonShare] = (),
    not_measured: Sequence[str] = (),
) -> LimitsRun:
    return LimitsRun(
        kind="limits",
        date="2026-01-02T03:04:05+00:00",
        command="python -m tidegate_bench limits",
        versions={"tidegate": "1.2.3"},
        machine=MACHINE,
        serve_arguments=(),
        starts=tuple(Start("cpu-avx2", seconds, 0.01) for seconds in ready_s),
        memory=memory,
        python=tuple(python),
        confined=tuple(runs),
        not_measured=tuple(not_measured),
    )
