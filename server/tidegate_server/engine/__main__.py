"""The engine process: `python -m tidegate_server.engine`, started by `process.py` and by nobody else."""

import contextlib
import os
import signal
import sys
import threading
from typing import Final

from tidegate_server.engine.channel import SocketChannel
from tidegate_server.engine.heartbeat import HeartbeatPage
from tidegate_server.engine.launch import read_launch
from tidegate_server.engine.loop import start_and_serve

EXIT_ORPHANED: Final = 2


def main() -> int:
    # Terminals and service managers signal the whole group; the API process drains first and then sends Shutdown.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    launch = read_launch(sys.stdin.buffer)
    if launch.configure_logging is not None:
        launch.configure_logging()
    threading.Thread(target=_exit_with_parent, args=(sys.stdin.fileno(),), name="parent-watch", daemon=True).start()
    heartbeat = HeartbeatPage.attach(launch.heartbeat_fd)
    channel = SocketChannel(launch.commands_address, launch.messages_address)
    try:
        return start_and_serve(launch, channel, heartbeat)
    finally:
        channel.close()


def _exit_with_parent(stdin_fd: int) -> None:
    """Wait for the end of standard input, which the parent holds open, and leave at once."""
    with contextlib.suppress(OSError):
        while os.read(stdin_fd, 4096):
            pass
    os._exit(EXIT_ORPHANED)  # a step or a load may be running in the main thread: nothing gentler stops it


if __name__ == "__main__":
    sys.exit(main())
