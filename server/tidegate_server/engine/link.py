"""How a client reaches its engine, be it a process, a thread, or a test."""

from collections.abc import Callable
from typing import Protocol

from tidegate_server.engine.messages import Command, EngineMessage
from tidegate_server.engine.snapshot import EngineSnapshot


class EngineLink(Protocol):
    """Started once, closed once. Both callbacks come on the event loop that called `start`."""

    def start(self, on_message: Callable[[EngineMessage], None], on_exit: Callable[[str], None]) -> None:
        """Bring the engine up; `on_exit` gets one line that says how it ended, after its last message."""
        ...

    def send(self, command: Command) -> None:
        """Pass a command on; one for an engine that is gone is dropped, and `on_exit` tells."""
        ...

    def snapshot(self) -> EngineSnapshot:
        """The engine's last word on its state; from any thread, never waits."""
        ...

    async def close(self, timeout_s: float) -> None:
        """Shut the engine down, by force after `timeout_s`; twice is harmless."""
        ...
