"""The engine in a process of its own: round trip, start errors, and what happens when either side dies."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.server.engine.counting_runner import (
    DEADLY_TOKEN,
    load_counting_runner,
    load_endless_runner,
    load_nothing,
    load_with_a_bug,
)
from tidegate_contract.admin import ServerState
from tidegate_server.engine.client import EngineClient
from tidegate_server.engine.launch import RunnerFactory
from tidegate_server.engine.messages import FinishReason
from tidegate_server.engine.process import ProcessLink, describe_exit
from tidegate_server.engine.request_stream import RequestStream
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.errors import Overloaded, StartError
from tidegate_server.model_source import ModelFiles, ModelFormat
from tidegate_server.settings import EngineSettings

FILES = ModelFiles(uri="file:///model", path=Path("/model"), format=ModelFormat.GGUF, name="counting", revision="1")
SETTINGS = EngineSettings(num_kv_blocks=64, block_size=4)
PATIENCE_S = 60.0  # never used up, unless something hangs


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(body(), PATIENCE_S))


def start(load_runner: RunnerFactory = load_counting_runner) -> tuple[EngineClient, ProcessLink]:
    link = ProcessLink(SETTINGS, FILES, load_runner)
    return EngineClient(link), link


def test_requests_stream_from_the_process_and_the_page_follows() -> None:
    async def body() -> None:
        client = EngineClient.start(SETTINGS, FILES, load_runner=load_counting_runner)
        assert client.snapshot().state is ServerState.STARTING
        ready = await client.ready()
        assert (ready.num_kv_blocks, ready.block_size, ready.vocab_size, ready.kernels) == (64, 4, 1000, "torch")

        async def collect(n: int) -> list[int]:
            stream = client.submit(str(n), [n * 10, n * 10 + 1], SamplingParams(max_tokens=6))
            return [token async for output in stream for token in output.token_ids]

        results = await asyncio.gather(*(collect(n) for n in range(10)))
        assert results == [list(range(n * 10 + 2, n * 10 + 8)) for n in range(10)]
        snapshot = client.snapshot()
        assert (snapshot.state, snapshot.num_requests, snapshot.num_running) == (ServerState.READY, 10, 0)
        await client.shutdown()
        await client.shutdown()
        assert not client.failed.is_set()

    run(body)


def test_a_client_that_leaves_frees_its_blocks_in_the_engine() -> None:
    async def body() -> None:
        client, _ = start()
        await client.ready()
        stream = client.submit("a", [1], SamplingParams(max_tokens=250))
        await anext(stream)
        await stream.aclose()
        while client.num_open:
            await asyncio.sleep(0)
        assert client.snapshot().kv_blocks_live == 0
        await client.shutdown()

    run(body)


def test_shutdown_ends_running_requests_with_abort() -> None:
    async def body() -> None:
        client, link = start()
        await client.ready()
        stream = client.submit("a", [1], SamplingParams(max_tokens=250))
        await anext(stream)
        await client.shutdown()
        last = [output async for output in stream][-1]
        assert last.finish_reason in (FinishReason.ABORT, FinishReason.LENGTH)
        assert link._process.returncode == 0
        assert not Path(link._directory).exists()

    run(body)


@pytest.mark.parametrize(
    ("load_runner", "code", "reason"),
    [
        pytest.param(load_nothing, "ModelNotFound", "file:///model: no such file", id="a start error keeps its code"),
        pytest.param(load_with_a_bug, "EngineCrashed", "ZeroDivisionError: a mistake of ours", id="a bug is one line"),
    ],
)
def test_an_engine_that_cannot_start_says_why(load_runner: RunnerFactory, code: str, reason: str) -> None:
    async def body() -> None:
        client, link = start(load_runner)
        with pytest.raises(StartError) as caught:
            await client.ready()
        assert (caught.value.code, str(caught.value)) == (code, reason)
        await client.failed.wait()
        assert client.snapshot().state is ServerState.FAILED
        await client.shutdown()
        assert link._process.returncode == 1

    run(body)


async def read_until_the_end(stream: RequestStream) -> None:
    async for output in stream:
        assert output.finish_reason is None, "the engine was faster than the signal"


def test_killing_the_engine_fails_every_stream_and_tells() -> None:
    async def body() -> None:
        client, link = start(load_endless_runner)
        await client.ready()
        stream = client.submit("a", [1], SamplingParams(max_tokens=1_000_000))
        await anext(stream)
        os.kill(link.pid, signal.SIGKILL)
        with pytest.raises(Overloaded, match="ended by SIGKILL"):
            await read_until_the_end(stream)
        await client.failed.wait()
        assert client.failure is not None
        assert client.failure.code == "EngineCrashed"
        assert client.snapshot().state is ServerState.FAILED
        await client.shutdown()

    run(body)


def test_an_engine_killed_before_it_is_ready_fails_the_start() -> None:
    async def body() -> None:
        client, link = start()
        os.kill(link.pid, signal.SIGKILL)
        with pytest.raises(StartError, match="ended by SIGKILL: if nobody sent it, memory ran out"):
            await client.ready()
        await client.shutdown()

    run(body)


def test_shutdown_while_loading_does_not_wait_for_the_model() -> None:
    async def body() -> None:
        client, link = start()
        await client.shutdown()
        assert link._process.returncode == -signal.SIGKILL
        with pytest.raises(StartError, match="shut down before"):
            await client.ready()

    run(body)


def test_an_engine_whose_device_is_lost_exits_and_says_so() -> None:
    async def body() -> None:
        client, link = start()
        await client.ready()
        with pytest.raises(Overloaded, match="the device fell off the bus"):
            await anext(client.submit("a", [DEADLY_TOKEN], SamplingParams(max_tokens=5)))
        await client.shutdown()
        assert link._process.returncode == 1

    run(body)


PARENT = """
import asyncio, os, sys
from tests.server.engine import test_process as t

async def main():
    client, link = t.start()
    await client.ready()
    os.write(int(sys.argv[1]), f"{link.pid}\\n".encode())
    async for _ in client.submit("a", [1], t.SamplingParams(max_tokens=250)): pass
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_the_engine_exits_when_its_parent_is_killed() -> None:
    # A pipe of its own for the engine's id: the engine's log goes to the same standard output.
    reading, writing = os.pipe()
    command = [sys.executable, "-c", PARENT, str(writing)]
    with subprocess.Popen(command, pass_fds=[writing], cwd=Path(__file__).parents[3]) as parent, open(reading) as told:
        os.close(writing)
        try:
            engine = os.pidfd_open(int(told.readline()))
        finally:
            parent.kill()
    try:
        readable, _, _ = select.select([engine], [], [], PATIENCE_S)
        assert readable, "the engine outlived its parent"
    finally:
        os.close(engine)


def test_ctrl_c_reaches_the_engine_through_its_parent_only() -> None:
    async def body() -> None:
        client, link = start()
        await client.ready()
        os.kill(link.pid, signal.SIGINT)
        stream = client.submit("a", [1], SamplingParams(max_tokens=3))
        assert [token async for output in stream for token in output.token_ids] == [2, 3, 4]
        await client.shutdown()

    run(body)


@pytest.mark.parametrize(
    ("status", "words"),
    [(3, "exited with status 3"), (-9, "SIGKILL: if nobody sent it, memory ran out"), (-11, "ended by SIGSEGV")],
)
def test_an_exit_is_told_in_one_line(status: int, words: str) -> None:
    assert describe_exit(status).endswith(words)
