"""What a recording of an engine's last steps holds, and its file: one JSON document a line, the head first.

A recording holds ids, no text; but the ids of prompts' tokens are the prompts to whoever has the tokenizer.
"""

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from tidegate_server.engine.batch import NO_COPIES, BlockCopies
from tidegate_server.engine.messages import AbortRequest, AddRequest, FinishReason
from tidegate_server.settings import EngineSettings

FORMAT: Final = 1


class InvalidRecording(ValueError):
    """A file is no recording, or not one that this version reads."""


class RecordedShare(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request's share of a step."""

    request_id: str
    start: int
    num_tokens: int
    seed: int


class RecordedResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a step told of one request."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    error: str | None


class RecordedCommand(msgspec.Struct, frozen=True, array_like=True):
    at_s: float  # CLOCK_MONOTONIC, when it was applied
    command: AddRequest | AbortRequest


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="step"):
    """One call of `Engine.step`, and the commands that were applied since the one before."""

    began_s: float  # CLOCK_MONOTONIC
    commands: tuple[RecordedCommand, ...] = ()
    step: int | None = None  # None: it ended while it was scheduled
    scheduled: tuple[RecordedShare, ...] = ()  # what was left of it when copies had failed
    preempted: tuple[str, ...] = ()
    results: tuple[RecordedResult, ...] = ()
    ended_s: float | None = None  # None: it never did
    failed_copies: BlockCopies = NO_COPIES
    kv_blocks_total: int | None = None  # at its end


class KnownRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was unfinished when the recording begins."""

    command: AddRequest
    output_token_ids: tuple[int, ...]


class RecordedRunner(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler knew of the runner; see `batch.LoadedRunner`."""

    max_model_len: int
    num_kv_blocks: int
    block_size: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    device: str
    dtype: str
    kernels: str
    num_host_blocks: int
    block_bytes: int
    swap_bytes_per_s: float


class RecordingHead(msgspec.Struct, frozen=True, kw_only=True, tag="head"):
    """What ran, and where it stood before the first step of the recording."""

    format: int = FORMAT
    version: str  # of the server
    model_uri: str
    model_revision: str
    settings: EngineSettings
    runner: RecordedRunner
    because: str = ""  # why it was written
    num_steps_forgotten: int = 0  # before the first one; 0: it holds the engine's whole life
    known: tuple[KnownRequest, ...] = ()  # in the order of arrival


@dataclass(frozen=True, slots=True)
class Recording:
    head: RecordingHead
    steps: tuple[RecordedStep, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it begins where the engine began."""
        return self.head.num_steps_forgotten == 0


def recording_path(directory: str, because: str, at: datetime) -> Path:
    """A name that says when and why, for a file in `directory`."""
    return Path(directory, f"tidegate-{at:%Y%m%dT%H%M%S.%fZ}-{because}.jsonl")


def write_recording(recording: Recording, path: Path) -> None:
    """Write a file that only this user can read; it appears under its name once it is complete.

    Raises:
        OSError: it could not be written.
    """
    encoder = msgspec.json.Encoder()
    part = path.with_name(f"{path.name}.part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(encoder.encode_lines([recording.head, *recording.steps]))
    part.rename(path)


def read_recording(path: Path) -> Recording:
    """Read a file back.

    Raises:
        InvalidRecording: says what is wrong with it.
        OSError: it could not be read.
    """
    first, _, rest = path.read_bytes().partition(b"\n")
    try:
        found = msgspec.json.decode(first, type=_Format)
        if found.format != FORMAT:
            raise InvalidRecording(f"{path}: it has format {found.format}; this version reads format {FORMAT}")
        head = msgspec.json.decode(first, type=RecordingHead)
        steps = msgspec.json.Decoder(RecordedStep).decode_lines(rest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRecording(f"{path}: it is no recording: {error}") from error
    return Recording(head, tuple(steps))


class _Format(msgspec.Struct, tag="head"):
    format: int
