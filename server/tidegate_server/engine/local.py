"""The engine in a thread of this process, with the client of the real one: for tests and offline benchmarks."""

import asyncio
import contextlib
import threading
from collections.abc import Callable

import structlog

from tidegate_server.engine.batch import LoadedRunner
from tidegate_server.engine.channel import QueueChannel
from tidegate_server.engine.client import EngineClient
from tidegate_server.engine.core import Engine
from tidegate_server.engine.faults import one_line
from tidegate_server.engine.heartbeat import HeartbeatPage
from tidegate_server.engine.loop import ready_message, serve
from tidegate_server.engine.messages import Command, EngineFailed, EngineMessage, Shutdown
from tidegate_server.engine.snapshot import EngineSnapshot
from tidegate_server.settings import EngineSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class LocalEngine(EngineClient):
    """An `EngineClient` whose engine runs the same step loop in a thread.

    Attributes:
        engine: the engine itself; its event log may be read once the requests of interest have ended.
    """

    def __init__(self, runner: LoadedRunner, settings: EngineSettings, revision: str = "") -> None:
        self.engine = Engine(runner, settings, revision)
        super().__init__(_ThreadLink(runner, self.engine))


class _ThreadLink:
    def __init__(self, runner: LoadedRunner, engine: Engine) -> None:
        self._runner = runner
        self._engine = engine
        self._page = HeartbeatPage.create()
        self._exited = asyncio.Event()

    def start(self, on_message: Callable[[EngineMessage], None], on_exit: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()

        def deliver(message: EngineMessage) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody is left to be told
                loop.call_soon_threadsafe(on_message, message)

        def tell_exit() -> None:
            self._exited.set()
            on_exit("the engine thread ended")

        def run() -> None:
            try:
                deliver(ready_message(self._runner, load_time_s=0.0))
                serve(self._engine, self._channel, self._page)
            except Exception as error:
                log.exception("engine_crashed", next="open requests fail")
                deliver(EngineFailed(reason=one_line(error), code="EngineCrashed"))
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(tell_exit)

        self._channel = QueueChannel(deliver)
        threading.Thread(target=run, name="engine", daemon=True).start()

    def send(self, command: Command) -> None:
        self._channel.put(command)

    def snapshot(self) -> EngineSnapshot:
        return self._page.read()

    async def close(self, timeout_s: float) -> None:
        self._channel.put(Shutdown())
        await asyncio.wait_for(self._exited.wait(), timeout_s)
