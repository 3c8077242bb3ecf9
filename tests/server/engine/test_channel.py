import tempfile

import msgspec
import zmq

from tests.server.engine.driving import add_request
from tidegate_server.engine.channel import QueueChannel, SocketChannel
from tidegate_server.engine.messages import (
    AbortRequest,
    AuditBlocks,
    Command,
    EngineMessage,
    EngineStopped,
    FinishReason,
    RequestOutput,
    Shutdown,
    StepOutput,
)

STEP = StepOutput(
    step=3,
    outputs=(
        RequestOutput(request_id="a", token_ids=(1,), logprobs=(-0.5,), top_logprobs=(((1, -0.5), (2, -1.5)),)),
        RequestOutput(request_id="b", finish_reason=FinishReason.ERROR, error="why", refused=True),
    ),
    step_time_s=0.25,
)


def test_messages_survive_the_wire() -> None:
    decoder: msgspec.msgpack.Decoder[EngineMessage] = msgspec.msgpack.Decoder(EngineMessage)
    for message in (STEP, EngineStopped()):
        assert decoder.decode(msgspec.msgpack.encode(message)) == message


def test_sockets_carry_commands_in_order_and_messages_back() -> None:
    commands: tuple[Command, ...] = (
        add_request("a", [1, 2]),
        AbortRequest(request_id="a"),
        AuditBlocks(),
        Shutdown(),
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        zmq.Context() as context,
        context.socket(zmq.PUSH) as push,
        context.socket(zmq.PULL) as pull,
    ):
        push.bind(f"ipc://{folder}/c")
        pull.bind(f"ipc://{folder}/m")
        channel = SocketChannel(f"ipc://{folder}/c", f"ipc://{folder}/m")
        assert channel.receive(timeout_s=0.0) == []
        for command in commands:
            push.send(msgspec.msgpack.encode(command))
        received: list[Command] = []
        while len(received) < len(commands):
            received += channel.receive(timeout_s=5.0)
        assert tuple(received) == commands
        channel.send(STEP)
        channel.close()
        assert pull.poll(5000)
        assert msgspec.msgpack.decode(pull.recv(), type=EngineMessage) == STEP


def test_queues_do_the_same_without_encoding() -> None:
    delivered: list[EngineMessage] = []
    channel = QueueChannel(delivered.append)
    assert channel.receive(timeout_s=0.0) == []
    channel.put(Shutdown())
    channel.put(AbortRequest(request_id="a"))
    assert channel.receive(timeout_s=5.0) == [Shutdown(), AbortRequest(request_id="a")]
    channel.send(STEP)
    assert delivered == [STEP]
