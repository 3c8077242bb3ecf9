"""When an engine's steps began and what they spent in the C library: written in the engine, read by the benchmark."""

import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Step:
    """One run of the model."""

    start_s: float  # of a monotonic clock
    library_s: float  # spent in the C library until the next step began
    num_requests: int
    num_new_tokens: int

    @property
    def is_decode(self) -> bool:
        """Whether every request computed one token."""
        return self.num_requests == self.num_new_tokens


@dataclass(frozen=True, slots=True)
class DecodeTimes:
    """Of steps that decode with one number of requests and are followed by another of them; medians."""

    num_steps: int
    step_s: float  # from its beginning to that of the next: all the engine does for it
    outside_s: float  # outside the C library


def decode_times(steps: Sequence[Step], num_requests: int) -> DecodeTimes | None:
    """None where no two such steps follow each other."""
    pairs = list(_pairs(steps, num_requests))
    if not pairs:
        return None
    periods_s = [later.start_s - earlier.start_s for earlier, later in pairs]
    outside_s = [period_s - earlier.library_s for period_s, (earlier, _) in zip(periods_s, pairs, strict=True)]
    return DecodeTimes(len(pairs), statistics.median(periods_s), statistics.median(outside_s))


def _pairs(steps: Sequence[Step], num_requests: int) -> Iterator[tuple[Step, Step]]:
    for earlier, later in itertools.pairwise(steps):
        if all(step.is_decode and step.num_requests == num_requests for step in (earlier, later)):
            yield earlier, later


def write_steps(steps: Sequence[Step], path: Path) -> None:
    rows = [(step.start_s, step.library_s, step.num_requests, step.num_new_tokens) for step in steps]
    path.write_text(json.dumps(rows))


def read_steps(path: Path) -> list[Step]:
    return [Step(*row) for row in json.loads(path.read_text())]
