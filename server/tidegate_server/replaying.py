"""`tidegate replay`: run a recording again, and say where it first comes out otherwise."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tidegate_server import log as logs
from tidegate_server.engine.launch import RunnerFactory
from tidegate_server.engine.recording import InvalidRecording, Recording, read_recording
from tidegate_server.engine.replay import num_blocks_needed, schedule_difference, token_difference
from tidegate_server.errors import StartError
from tidegate_server.model_source import resolve_model
from tidegate_server.settings import EngineSettings, ExactMode
from tidegate_server.version import server_version

EXIT_SAME = 0
EXIT_DIFFERS = 1
EXIT_NOT_REPLAYED = 2


def replay(arguments: Sequence[str], load_runner: RunnerFactory | None = None) -> int:
    """Replay a file; gives the exit code.

    Args:
        load_runner: makes the model's runner; None: the real one.
    """
    parser = argparse.ArgumentParser(
        prog="tidegate replay",
        description="Run a recording again. Exit code 0: the schedule and the tokens are the same; 1: they are not; "
        "2: it could not be run.",
    )
    parser.add_argument("file", type=Path, help="what the server wrote to its --record-dir")
    parser.add_argument("--model", metavar="URI", help="instead of the recorded one")
    given = parser.parse_args(arguments)
    logs.configure("text", "warning")
    try:
        recording = read_recording(given.file)
        return _replay(recording, given.model or recording.head.model_uri, load_runner)
    except (InvalidRecording, OSError) as error:
        return _not_replayed(str(error))
    except StartError as error:
        return _not_replayed(f"{error.code}: {error}")


def _replay(recording: Recording, model_uri: str, load_runner: RunnerFactory | None) -> int:
    head = recording.head
    _say(
        f"{len(recording.steps)} steps of {head.model_uri} on tidegate {head.version}, written because: {head.because}"
    )
    if head.version != server_version():
        _say(f"this is tidegate {server_version()}")
    differences = []
    if recording.is_whole:
        difference = schedule_difference(recording)
        differences.append(difference)
        _say(f"schedule: {difference or 'the same'}")
    else:
        _say(f"schedule: followed, not decided again: {head.num_steps_forgotten} steps before are not in the file")
    if load_runner is None:
        from tidegate_server.model import runner  # slow to import

        load_runner = runner.load_runner
    difference = token_difference(recording, load_runner(settings_for(recording), resolve_model(model_uri)))
    differences.append(difference)
    _say(f"tokens: {difference or 'the same'}")
    return EXIT_SAME if differences.count(None) == len(differences) else EXIT_DIFFERS


def settings_for(recording: Recording) -> EngineSettings:
    """The recorded settings, with room for a replay, in which requests share no blocks."""
    head = recording.head
    block_size = head.runner.block_size
    return replace(
        head.settings,
        max_model_len=head.runner.max_model_len,
        num_kv_blocks=max(head.runner.num_kv_blocks, num_blocks_needed(recording, block_size)),
        kv_cache_memory_bytes=None,
        exact=ExactMode.OFF,
        record_dir=None,
    )


def _not_replayed(why: str) -> int:
    sys.stderr.write(f"tidegate: {why}\n")
    return EXIT_NOT_REPLAYED


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
