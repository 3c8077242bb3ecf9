"""What the engine process is told when it starts: written to its standard input, which then stays open.

The end of that input is also how the engine learns that its parent is gone, whatever it is doing at the time.
"""

import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from tidegate_server.engine.batch import LoadedRunner
from tidegate_server.model_source import ModelFiles
from tidegate_server.settings import EngineSettings

RunnerFactory = Callable[[EngineSettings, ModelFiles], LoadedRunner]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaunch:
    """Everything one engine process needs; pickled, so its callables are module-level functions or partials of them."""

    settings: EngineSettings
    files: ModelFiles
    commands_address: str  # ZeroMQ: the engine pulls commands from here
    messages_address: str  # ZeroMQ: the engine pushes messages to here
    heartbeat_fd: int
    load_runner: RunnerFactory | None = None  # None: the model's own
    configure_logging: Callable[[], None] | None = None  # called first in the process


def write_launch(launch: EngineLaunch, stream: IO[bytes]) -> None:
    # The import path goes first, so that the rest can be unpickled whatever it names.
    pickle.dump(sys.path, stream)
    pickle.dump(launch, stream)
    stream.flush()


def read_launch(stream: IO[bytes]) -> EngineLaunch:
    sys.path[:] = pickle.load(stream)
    launch = pickle.load(stream)
    assert isinstance(launch, EngineLaunch), f"standard input holds a {type(launch).__name__}, not a launch"
    return launch
