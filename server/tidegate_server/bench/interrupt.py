"""Ctrl-C as an event: a run that is stopped still tells what it measured."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def interruption() -> Iterator[asyncio.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; the second acts as it always does."""
    loop = asyncio.get_running_loop()
    interrupted = asyncio.Event()

    def leave_to_python() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    def interrupt() -> None:
        interrupted.set()
        leave_to_python()

    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        yield interrupted
    finally:
        leave_to_python()
