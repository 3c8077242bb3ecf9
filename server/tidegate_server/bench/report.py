"""Everything of one run as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from tidegate_server.bench.driver import Measurement
from tidegate_server.bench.machine import Machine
from tidegate_server.bench.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `--json` writes. Times are seconds, those of records and samples after the start of the run."""

    date: str  # ISO 8601, UTC, of the start
    command: str  # makes it again
    machine: Machine
    versions: Mapping[str, str]
    workload: str  # in a line
    target: str
    summary: Summary
    measurement: Measurement


def to_json(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"
