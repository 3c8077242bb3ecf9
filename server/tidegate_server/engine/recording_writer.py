"""Writes the engine's recording to files: when asked, at the first fault of each kind, and when the engine crashes."""

import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from tidegate_server.engine.batch import LoadedRunner
from tidegate_server.engine.faults import FaultKind
from tidegate_server.engine.progress_watch import Progress, ProgressWatch
from tidegate_server.engine.recorder import Recorder
from tidegate_server.engine.recording import RecordedRunner, RecordingHead, recording_path, write_recording
from tidegate_server.engine.snapshot import EngineSnapshot
from tidegate_server.errors import InvalidSetting
from tidegate_server.model_source import ModelFiles
from tidegate_server.settings import EngineSettings
from tidegate_server.version import server_version

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_LOOK_EVERY_S: Final = 1.0


class RecordingWriter:
    """
    Args:
        directory: where the files go; None: none is written.
        head: of every recording; says what runs.
        faults: what the engine has counted; looked at, not changed.
    """

    def __init__(
        self, directory: str | None, head: RecordingHead, recorder: Recorder, faults: Counter[FaultKind]
    ) -> None:
        self._directory = directory
        self._head = head
        self._recorder = recorder
        self._faults = faults
        self._written: set[FaultKind] = set()

    def write_first_faults(self) -> None:
        """One file for each kind that is new: a prompt that fails, sent again and again, must not fill the disk."""
        if len(self._faults) == len(self._written):
            return
        for kind in [kind for kind in self._faults if kind not in self._written]:
            self._written.add(kind)
            self.write(kind.value)

    def write(self, because: str, path: Path | None = None) -> None:
        """Write a file now; when that fails the log says so.

        Args:
            because: a word that becomes part of the name.
            path: the whole name, when somebody was told it already.
        """
        if self._directory is None:
            return
        if path is None:
            path = recording_path(self._directory, because, datetime.now(UTC))
        recording = self._recorder.recording(self._head, because)
        try:
            write_recording(recording, path)
        except OSError as error:
            log.error("recording_lost", path=str(path), reason=str(error), next="the engine goes on")
        else:
            log.warning("recording_written", path=str(path), because=because, num_steps=len(recording.steps))


def write_first_hung_step(
    recordings: RecordingWriter,
    snapshot: Callable[[], EngineSnapshot],
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Write what the step loop was at when it first stood still; runs in a thread beside it, and until then for ever.

    Args:
        snapshot: what the step loop showed last.
        wait: for so many seconds.
    """
    watch = ProgressWatch(_LOOK_EVERY_S)
    while watch.look(snapshot()) is Progress.MOVING:
        wait(_LOOK_EVERY_S)
    try:
        recordings.write("hung_step")
    except RuntimeError:  # the step loop woke up and changed what was being written
        log.info("recording_dropped", because="the step that hung has ended")


def head_of(runner: LoadedRunner, settings: EngineSettings, files: ModelFiles) -> RecordingHead:
    """What runs, as the heads of its recordings tell it."""
    return RecordingHead(
        version=server_version(),
        model_uri=files.uri,
        model_revision=files.revision,
        settings=settings,
        runner=RecordedRunner(
            max_model_len=runner.max_model_len,
            num_kv_blocks=runner.num_kv_blocks,
            block_size=runner.block_size,
            vocab_size=runner.vocab_size,
            eos_token_ids=runner.eos_token_ids,
            device=runner.device,
            dtype=runner.dtype,
            kernels=runner.kernels,
            num_host_blocks=runner.num_host_blocks,
            block_bytes=runner.block_bytes,
            swap_bytes_per_s=runner.swap_bytes_per_s,
        ),
    )


def check_directory(directory: str | None) -> None:
    """Look before the first fault whether its recording could be written.

    Raises:
        InvalidSetting: it could not.
    """
    if directory is not None and not (os.path.isdir(directory) and os.access(directory, os.W_OK)):
        raise InvalidSetting("--record-dir", f"{directory} is no folder that this server may write to")
