"""The engine process as its parent holds it: start, talk, watch, end."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import structlog
import zmq
import zmq.asyncio

from tidegate_server.engine.heartbeat import HeartbeatPage
from tidegate_server.engine.launch import EngineLaunch, RunnerFactory, write_launch
from tidegate_server.engine.messages import Command, EngineFailed, EngineMessage, EngineReady, EngineStopped, Shutdown
from tidegate_server.engine.snapshot import EngineSnapshot
from tidegate_server.model_source import ModelFiles
from tidegate_server.settings import EngineSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# Named, not imported: this side must load neither the scheduler nor torch.
ENGINE_MODULE: Final = "tidegate_server.engine"

# An engine that exits by itself has said why; the message may arrive after the news of its end.
_LAST_MESSAGE_TIMEOUT_S: Final = 2.0


# How often torch's threads (GNU OpenMP) look for the next parallel region before they sleep. By default they look for
# milliseconds, and whenever a neighbour holds a core, everybody waits for the thread that looks: a decode step of the
# embedded model took 1,000 ms instead of 110 beside one busy process on two cores (medians of 20; alone 92 and 107).
_OPENMP_SPINS: Final = "5000"


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The engine process's environment: ours, with OpenMP told not to spin, unless somebody chose how it waits."""
    if "GOMP_SPINCOUNT" in environment or "OMP_WAIT_POLICY" in environment:
        return dict(environment)
    return {**environment, "GOMP_SPINCOUNT": _OPENMP_SPINS}


class ProcessLink:
    """An engine in a process of its own, reached through two ZeroMQ sockets in a private folder.

    Not `multiprocessing`: that imports the parent's main module, and with it the whole HTTP side, into the engine.
    """

    def __init__(
        self,
        settings: EngineSettings,
        files: ModelFiles,
        load_runner: RunnerFactory | None = None,
        configure_logging: Callable[[], None] | None = None,
    ) -> None:
        self._page = HeartbeatPage.create()
        self._directory = tempfile.mkdtemp(prefix="tidegate-")  # readable by this user only
        self._launch = EngineLaunch(
            settings=settings,
            files=files,
            commands_address=f"ipc://{self._directory}/commands",
            messages_address=f"ipc://{self._directory}/messages",
            heartbeat_fd=self._page.fd,
            load_runner=load_runner,
            configure_logging=configure_logging,
        )
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[EngineMessage] = msgspec.msgpack.Decoder(EngineMessage)
        self._is_ready = False
        self._exited = asyncio.Event()
        self._last_message = asyncio.Event()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, on_message: Callable[[EngineMessage], None], on_exit: Callable[[str], None]) -> None:
        self._context = zmq.Context()
        self._messages = zmq.asyncio.Context(self._context).socket(zmq.PULL)
        # A plain socket: with no high-water mark a send never waits, so it needs no event loop.
        self._commands = self._context.socket(zmq.PUSH)
        for socket in (self._messages, self._commands):
            socket.set_hwm(0)
            socket.linger = 0
        self._messages.bind(self._launch.messages_address)
        self._commands.bind(self._launch.commands_address)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", ENGINE_MODULE],
            stdin=subprocess.PIPE,
            pass_fds=[self._page.fd],
            env=engine_environment(os.environ),
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead already; the watch tells
            write_launch(self._launch, self._process.stdin)
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._wait_for_exit, args=(loop,), name="engine-watch", daemon=True).start()
        self._reading = loop.create_task(self._read(on_message), name="engine-messages")
        self._reading.add_done_callback(self._on_reading_end)
        self._watching = loop.create_task(self._watch(on_exit), name="engine-exit")

    def send(self, command: Command) -> None:
        frame = self._encoder.encode(command)
        if self._commands.closed:
            return
        with contextlib.suppress(zmq.Again):  # nobody at the other end: the engine is gone, and the watch tells
            self._commands.send(frame, zmq.NOBLOCK)

    def snapshot(self) -> EngineSnapshot:
        return self._page.read()

    async def close(self, timeout_s: float) -> None:
        if not self._exited.is_set():
            if self._is_ready or self._last_message.is_set():
                self.send(Shutdown())
                await self._wait(timeout_s)
            # It ignores SIGTERM and holds nothing that needs clearing away.
            if not self._exited.is_set():
                self._process.kill()
        await asyncio.shield(self._watching)

    async def _wait(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), timeout_s)

    async def _read(self, on_message: Callable[[EngineMessage], None]) -> None:
        while True:
            message = self._decoder.decode(await self._messages.recv())
            match message:
                case EngineReady():
                    self._is_ready = True
                case EngineFailed() | EngineStopped():
                    self._last_message.set()
                case _:
                    pass
            on_message(message)

    def _on_reading_end(self, reading: asyncio.Task[None]) -> None:
        if reading.cancelled():
            return
        log.error("engine_message_unreadable", next="the engine process is ended", exc_info=reading.exception())
        self._process.kill()

    async def _watch(self, on_exit: Callable[[str], None]) -> None:
        """Wait for the engine's end, tell it, and clear away."""
        await self._exited.wait()
        status = self._process.returncode
        if status >= 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._last_message.wait(), _LAST_MESSAGE_TIMEOUT_S)
        self._reading.cancel()
        await asyncio.wait([self._reading])
        self._messages.close()
        self._commands.close()
        self._context.term()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        on_exit(describe_exit(status))

    def _wait_for_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody is left to be told
            loop.call_soon_threadsafe(self._exited.set)


def describe_exit(status: int) -> str:
    """How a process ended, in one line."""
    if status >= 0:
        return f"the engine process exited with status {status}"
    name = signal.Signals(-status).name
    if -status == signal.SIGKILL:
        return f"the engine process was ended by {name}: if nobody sent it, memory ran out"
    return f"the engine process was ended by {name}"
