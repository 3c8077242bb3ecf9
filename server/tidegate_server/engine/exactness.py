"""Whether rows keep their bits in any batch: what the probe at start found, and what `--exact` makes of it."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from tidegate_server.errors import InvalidSetting
from tidegate_server.settings import ExactMode

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that gave a row other bits in another batch."""

    op: str  # with its sizes, such as "down 1536x576"
    how: str  # which rows against which, in words

    def __str__(self) -> str:
        return f"{self.op} ({self.how})"


@dataclass(frozen=True, slots=True)
class Exactness:
    """What the probe found; where it did not run, None stands in its place."""

    differences: tuple[Difference, ...] = ()

    @property
    def is_exact(self) -> bool:
        return not self.differences

    @property
    def inexact_ops(self) -> tuple[str, ...]:
        """What differed, for the reports."""
        return tuple(difference.op for difference in self.differences)


def settle_exactness(
    mode: ExactMode,
    find_differences: Callable[[], Iterable[Difference]],
    kernels: str,
    now_s: Callable[[], float] = time.perf_counter,
) -> Exactness | None:
    """Probe as `--exact` says, and tell the log in one line.

    Args:
        find_differences: the probe; not called with `off`.
        kernels: their name, such as "cpu-avx2".

    Raises:
        InvalidSetting: rows have to keep their bits, and do not; names what differs and what to change.
    """
    if mode is ExactMode.OFF:
        log.info("exactness_not_probed", because="--exact off", kernels=kernels)
        return None
    started_s = now_s()
    found = Exactness(tuple(find_differences()))
    facts = {"exact": found.is_exact, "kernels": kernels, "probe_time_s": round(now_s() - started_s, 3)}
    if found.is_exact:
        log.info("exactness_probed", **facts)
        return found
    if mode is ExactMode.REQUIRE:
        raise InvalidSetting("--exact", _refusal(found, kernels))
    log.warning(
        "exactness_probed",
        **facts,
        differs=[str(difference) for difference in found.differences],
        next=f"a request may get other tokens in other company; {_advice(kernels)}",
    )
    return found


def _refusal(found: Exactness, kernels: str) -> str:
    first, *others = found.differences
    where = ", ".join((str(first), *(other.op for other in others)))
    return (
        f"require was asked for, but with {kernels} kernels rows do not keep their bits in every batch: {where}; "
        f"{_advice(kernels)}, or serve all the same with --exact auto"
    )


def _advice(kernels: str) -> str:
    """What could make it exact."""
    match kernels:
        case "triton":
            return "use --device cpu, whose own kernels are exact"
        case "torch":
            return "use the CPU kernels in C (--cpu-isa auto with --dtype float32 or bfloat16)"
        case _:
            return "try another --cpu-isa or --dtype"
