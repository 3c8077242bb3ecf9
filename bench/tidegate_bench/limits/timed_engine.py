"""What the engine process of `timed_server` calls; light, because the API process imports it too."""

from pathlib import Path

from tidegate_server.engine.batch import LoadedRunner
from tidegate_server.model_source import ModelFiles
from tidegate_server.settings import EngineSettings


def load_timed_runner(settings: EngineSettings, files: ModelFiles, *, record: Path) -> LoadedRunner:
    """A runner that leaves its steps' times in `record` when the process ends."""
    from tidegate_bench.limits import timed_runner  # brings torch

    return timed_runner.load_timed_runner(settings, files, record)
