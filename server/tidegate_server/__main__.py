"""The `tidegate` command: reads the settings, makes the parts, runs them, and says in one line why it stops.

Nothing heavy is imported here: a wrong flag is told at once.
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate_server.early_signals import keep_signals
from tidegate_server.errors import InvalidSetting, StartError
from tidegate_server.version import server_version

if TYPE_CHECKING:
    from tidegate_server.settings import ServerSettings

EXIT_FAILED = 1
EXIT_USAGE = 2

USAGE = """\
usage: tidegate [-h] [--version] COMMAND ...

Serve large language models on Kubernetes.

commands:
  serve    serve one model with an OpenAI-compatible API (tidegate serve --help)
  bench    send a workload to our engine or to any OpenAI-compatible endpoint (tidegate bench --help)
  replay   run a recording of a server's last steps again (tidegate replay --help)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code: 0 well, 1 failed, 2 wrongly called."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    match given:
        case [] | ["-h" | "--help", *_]:
            sys.stdout.write(USAGE)
            return 0 if given else EXIT_USAGE
        case ["--version", *_]:
            sys.stdout.write(f"tidegate {server_version()}\n")
            return 0
        case [name, *rest] if name in COMMANDS:
            return COMMANDS[name](rest)
        case _:
            return _say(f"{given[0]}: there is no such command; see tidegate --help", EXIT_USAGE)


def serve(arguments: Sequence[str]) -> int:
    """`tidegate serve`: one pod's server, until it is told to stop."""
    early_signals = keep_signals()  # first of all: what follows takes its time

    from tidegate_server.settings import TERMINATION_MESSAGE_PATH, as_given, read_settings
    from tidegate_server.termination import leave_message

    try:
        settings, warnings = read_settings(arguments, os.environ)
    except InvalidSetting as error:
        # The operator shows it too: extra arguments come from the resource.
        return _not_started(error, TERMINATION_MESSAGE_PATH)

    try:
        return _run(settings, warnings, early_signals)
    except InvalidSetting as error:
        return _not_started(as_given(error, arguments, os.environ), settings.termination_message_path)
    except StartError as error:
        return _not_started(error, settings.termination_message_path)
    except Exception as error:  # a mistake of ours: Kubernetes hears of it too
        leave_message(settings.termination_message_path, "ServerCrashed", repr(error))
        raise


def bench(arguments: Sequence[str]) -> int:
    """`tidegate bench`: one workload, measured."""
    from tidegate_server.bench.command import EXIT_INTERRUPTED, run

    try:
        return run(arguments, os.environ)
    except InvalidSetting as error:
        return _say(_in_one_line(error), EXIT_USAGE)
    except StartError as error:
        return _say(f"{error.code}: {_in_one_line(error)}", EXIT_FAILED)
    except KeyboardInterrupt:
        return _say("interrupted", EXIT_INTERRUPTED)


def replay(arguments: Sequence[str]) -> int:
    """`tidegate replay`: whether a recording comes out the same again."""
    from tidegate_server import replaying

    return replaying.replay(arguments)


def _run(settings: "ServerSettings", warnings: Sequence[str], early_signals: Sequence[signal.Signals]) -> int:
    import structlog
    import uvloop

    from tidegate_server import log as logs
    from tidegate_server.listeners import bind

    # Texts are tokenized one by one, for which the threads of the tokenizers library would only lie about.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logs.configure(settings.log_format, settings.log_level)
    log = structlog.get_logger(__name__)
    for warning in warnings:
        log.warning("unknown_setting", note=warning)
    api_socket = bind(settings.host, settings.port, "--port")
    ops_socket = bind(settings.host, settings.ops_port, "--ops-port")
    log.info("starting", version=server_version())

    from tidegate_server.pod import Listeners, Pod

    async def live() -> int:
        return await Pod(settings, Listeners(api=api_socket, ops=ops_socket)).run(early_signals)

    return uvloop.run(live())


def _not_started(error: StartError, message_path: Path) -> int:
    """Tell why, on standard error and to Kubernetes; gives the exit code."""
    from tidegate_server.termination import leave_message

    message = _in_one_line(error)
    leave_message(message_path, error.code, message)
    if isinstance(error, InvalidSetting):
        return _say(message, EXIT_USAGE)
    return _say(f"{error.code}: {message}", EXIT_FAILED)


def _in_one_line(error: StartError) -> str:
    return " ".join(str(error).split())


def _say(message: str, exit_code: int) -> int:
    sys.stderr.write(f"tidegate: {message}\n")
    return exit_code


COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {"serve": serve, "bench": bench, "replay": replay}

if __name__ == "__main__":
    sys.exit(main())
