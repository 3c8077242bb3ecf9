"""Heads for recordings of the counting model."""

from pathlib import Path

from tests.server.engine.counting_runner import CountingRunner
from tidegate_server.engine.recording import RecordingHead
from tidegate_server.engine.recording_writer import head_of
from tidegate_server.model_source import ModelFiles, ModelFormat
from tidegate_server.settings import EngineSettings

FILES = ModelFiles(uri="file:///model", path=Path("/model"), format=ModelFormat.GGUF, name="counting", revision="rev")


def head_for(runner: CountingRunner, settings: EngineSettings) -> RecordingHead:
    return head_of(runner, settings, FILES)


HEAD = head_for(CountingRunner(), EngineSettings())
