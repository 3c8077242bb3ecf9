"""Recorded requests, in the two formats in which public traces come.

CSV of the Azure LLM inference traces (Patel et al. 2024): `TIMESTAMP,ContextTokens,GeneratedTokens`, a date and time
and two lengths. JSON lines of Mooncake (Qin et al. 2025): `timestamp` (ms), `input_length`, `output_length` and
`hash_ids`, one id per block of 512 prompt tokens; equal ids are equal prefixes.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

TRACE_BLOCK_TOKENS = 512
_CSV_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class InvalidTrace(ValueError):
    """A line that is of neither format; the message says which and why."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One recorded request."""

    arrival_s: float  # after the first of the trace
    num_prompt_tokens: int
    num_output_tokens: int
    block_ids: tuple[int, ...] = ()  # of its prompt, one per TRACE_BLOCK_TOKENS; empty: shares nothing


def parse_trace(text: str) -> list[TraceEntry]:
    """The requests of a trace file in order of arrival, the first at 0.

    Raises:
        InvalidTrace: a line cannot be read, or there is none.
    """
    entries = list(_json_entries(text) if text.lstrip().startswith("{") else _csv_entries(text))
    if not entries:
        raise InvalidTrace("it holds no requests")
    entries.sort(key=lambda entry: entry.arrival_s)
    first_s = entries[0].arrival_s
    return [replace(entry, arrival_s=entry.arrival_s - first_s) for entry in entries]


class _JsonLine(msgspec.Struct):
    timestamp: float  # ms
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def _json_entries(text: str) -> Iterator[TraceEntry]:
    decoder = msgspec.json.Decoder(_JsonLine)
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise InvalidTrace(f"line {number}: {error}") from None
        yield _entry(number, found.timestamp / 1000, found.input_length, found.output_length, found.hash_ids)


def _csv_entries(text: str) -> Iterator[TraceEntry]:
    rows = csv.DictReader(io.StringIO(text))
    missing = [name for name in _CSV_COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise InvalidTrace(f"line 1: neither JSON nor a CSV header with {', '.join(_CSV_COLUMNS)}")
    for row in rows:
        try:
            arrival_s = datetime.fromisoformat(row["TIMESTAMP"]).timestamp()
            lengths = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except (TypeError, ValueError) as error:  # TypeError: the row is too short
            raise InvalidTrace(f"line {rows.line_num}: {error}") from None
        yield _entry(rows.line_num, arrival_s, *lengths)


def _entry(
    line: int, arrival_s: float, num_prompt_tokens: int, num_output_tokens: int, block_ids: tuple[int, ...] = ()
) -> TraceEntry:
    if num_prompt_tokens < 0 or num_output_tokens < 0:
        raise InvalidTrace(f"line {line}: a length is negative")
    return TraceEntry(arrival_s, num_prompt_tokens, num_output_tokens, block_ids)
