"""The engine's end of the conversation: commands come in, messages go out, over sockets or over queues."""

import queue
from collections.abc import Callable
from typing import Protocol

import msgspec
import zmq

from tidegate_server.engine.messages import Command, EngineMessage


class Channel(Protocol):
    """What the step loop speaks through."""

    def receive(self, timeout_s: float) -> list[Command]:
        """Every command that has arrived; waits up to `timeout_s` for the first."""
        ...

    def send(self, message: EngineMessage) -> None:
        """Pass a message on; never waits for the other side."""
        ...


class SocketChannel:
    """Two ZeroMQ sockets, each used in one direction."""

    # How long a close waits for the last messages to leave.
    LINGER_MS = 2000

    def __init__(self, commands_address: str, messages_address: str) -> None:
        self._context = zmq.Context()
        self._commands = self._context.socket(zmq.PULL)
        self._messages = self._context.socket(zmq.PUSH)
        for socket in (self._commands, self._messages):
            # No high-water mark: a slow API process must not stop everybody's step.
            socket.set_hwm(0)
            socket.linger = self.LINGER_MS
        self._commands.connect(commands_address)
        self._messages.connect(messages_address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)

    def receive(self, timeout_s: float) -> list[Command]:
        commands: list[Command] = []
        if timeout_s > 0 and not self._commands.poll(int(timeout_s * 1000)):
            return commands
        while True:
            try:
                frame = self._commands.recv(zmq.NOBLOCK)
            except zmq.Again:
                return commands
            commands.append(self._decoder.decode(frame))

    def send(self, message: EngineMessage) -> None:
        self._messages.send(self._encoder.encode(message))

    def close(self) -> None:
        """Close, once the last messages have left or `LINGER_MS` have passed."""
        self._context.destroy(linger=self.LINGER_MS)


class QueueChannel:
    """The same within one process: a queue for commands, a callback for messages."""

    def __init__(self, deliver: Callable[[EngineMessage], None]) -> None:
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._deliver = deliver

    def put(self, command: Command) -> None:
        """The API side's end; from any thread."""
        self._commands.put(command)

    def receive(self, timeout_s: float) -> list[Command]:
        commands: list[Command] = []
        try:
            if timeout_s > 0:
                commands.append(self._commands.get(timeout=timeout_s))
            while True:
                commands.append(self._commands.get_nowait())
        except queue.Empty:
            return commands

    def send(self, message: EngineMessage) -> None:
        self._deliver(message)
