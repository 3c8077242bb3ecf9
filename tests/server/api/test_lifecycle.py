"""Starting, draining and failing, as clients and the process see them."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.server.api.api_server import MODEL, ApiServer
from tests.server.api.half_request import everything_of, half_sent
from tidegate_contract.admin import ServerState
from tidegate_server.api.lifecycle import DrainEnd, Lifecycle
from tidegate_server.errors import EngineError, Overloaded

LONG_S = 1000.0  # never waited for


def refusal(http: httpx.Client, path: str = "/v1/completions") -> httpx.Response:
    reply = http.post(path, json={"prompt": "a"}) if path != "/v1/models" else http.get(path)
    assert reply.status_code == 503
    assert int(reply.headers["retry-after"]) > 0
    assert reply.headers["connection"] == "close"
    assert reply.json()["error"]["type"] == "service_unavailable_error"
    return reply


def test_a_starting_server_says_so_and_then_serves() -> None:
    with ApiServer(ready=False) as server, httpx.Client(base_url=server.url, timeout=30) as http:
        assert "loading" in refusal(http).json()["error"]["message"]
        refusal(http, "/v1/models")
        assert http.get("/health").status_code == 503
        server.call(lambda: server.become_ready(None))
        assert http.post("/v1/completions", json={"prompt": "a"}).status_code == 200
        assert http.get("/health").status_code == 200


def test_a_draining_server_finishes_streams_and_refuses_new_requests(
    server: ApiServer, client: openai.OpenAI, http: httpx.Client
) -> None:
    server.close_gate(after=1)
    stream = client.completions.create(model=MODEL, prompt="hello", max_tokens=32, stream=True)
    server.until(lambda: len(server.engine.added) == 1)
    server.call(server.lifecycle.ask_to_drain)
    assert server.lifecycle.state is ServerState.DRAINING

    # During the notice requests are still taken, but their connections are not kept.
    server.open_gate()
    taken = http.post("/v1/completions", json={"prompt": "a"})
    assert (taken.status_code, taken.headers["connection"]) == (200, "close")
    server.close_gate()

    drained = asyncio.run_coroutine_threadsafe(server.lifecycle.drain(0, LONG_S), server.loop)
    server.until(lambda: not server.lifecycle.accepts)
    assert refusal(http).json()["error"]["code"] == "draining"
    server.open_gate()
    assert "".join(chunk.choices[0].text for chunk in stream) == "hello"
    assert drained.result(30) is DrainEnd.EMPTY


def test_a_half_sent_request_is_not_inside_and_is_refused_when_the_drain_comes(
    server: ApiServer, http: httpx.Client
) -> None:
    with half_sent(server.url) as connection:
        assert http.get("/health").status_code == 200  # so the server has seen the one before
        assert server.lifecycle.num_unfinished == 0
        server.call(server.lifecycle.ask_to_drain)
        drained = asyncio.run_coroutine_threadsafe(server.lifecycle.drain(0, LONG_S), server.loop)
        assert drained.result(30) is DrainEnd.EMPTY
        reply = everything_of(connection)
    assert reply.startswith(b"HTTP/1.1 503")
    assert b'"draining"' in reply


def test_requests_that_a_stopping_engine_aborts_end_with_an_error(server: ApiServer, client: openai.OpenAI) -> None:
    server.close_gate(after=1)
    stream = client.completions.create(model=MODEL, prompt="hello", max_tokens=32, stream=True)
    server.until(lambda: len(server.engine.added) == 1)
    server.call(server.engine.stop)
    with pytest.raises(openai.APIError, match="send it again"):
        list(stream)


def test_streams_of_a_crashed_engine_end_with_an_error(server: ApiServer, client: openai.OpenAI) -> None:
    server.close_gate(after=1)
    stream = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True)
    server.until(lambda: len(server.engine.added) == 1)
    server.call(lambda: server.engine.stop(EngineError("the engine process was killed")))
    with pytest.raises(openai.APIError, match="was killed"):
        list(stream)
    server.call(lambda: server.lifecycle.failed("the engine process was killed"))
    with httpx.Client(base_url=server.url) as http:
        assert "was killed" in refusal(http).json()["error"]["message"]
        assert http.get("/health").json()["error"]["code"] == "engine_failed"


def test_a_stream_that_fails_before_its_first_output_gets_a_status(server: ApiServer, http: httpx.Client) -> None:
    server.close_gate()
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    with ThreadPoolExecutor(1) as visitor:
        reply = visitor.submit(http.post, "/v1/chat/completions", json=body)
        server.until(lambda: len(server.engine.added) == 1)
        server.call(lambda: server.engine.stop(EngineError("the engine process was killed")))
    assert reply.result().status_code == 500
    assert "was killed" in reply.result().json()["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("choices", [1, 3])
def test_a_client_that_leaves_frees_the_engine(server: ApiServer, stream: bool, choices: int) -> None:
    server.close_gate(after=1 if stream else 0)
    body = {"prompt": "hello", "stream": stream, "n": choices}
    leave = threading.Event()

    def visit() -> None:
        with httpx.Client(base_url=server.url, timeout=30) as http, http.stream("POST", "/v1/completions", json=body):
            leave.wait(30)

    if stream:
        visitor = threading.Thread(target=visit)
        visitor.start()
        server.until(lambda: len(server.engine.added) == choices)
        leave.set()
        visitor.join()
    else:
        impatient = httpx.Client(base_url=server.url, timeout=httpx.Timeout(30, read=0.2))
        with impatient as http, pytest.raises(httpx.ReadTimeout):
            http.post("/v1/completions", json=body)
    server.until(lambda: len(server.engine.aborted) == choices)
    server.until(lambda: server.lifecycle.num_unfinished == 0)
    assert server.count("tidegate_requests_total", outcome="abort") == choices


def run(test: Callable[[Lifecycle], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        lifecycle = Lifecycle()
        lifecycle.became_ready()
        await asyncio.wait_for(test(lifecycle), 30)

    asyncio.run(body())


def test_a_drain_without_requests_ends_after_the_notice() -> None:
    async def test(lifecycle: Lifecycle) -> None:
        lifecycle.ask_to_drain()
        assert await lifecycle.drain(0.01, LONG_S) is DrainEnd.EMPTY

    run(test)


def test_requests_are_taken_during_the_notice_and_not_after_it() -> None:
    async def test(lifecycle: Lifecycle) -> None:
        lifecycle.ask_to_drain()
        draining = asyncio.create_task(lifecycle.drain(LONG_S, LONG_S))
        await asyncio.sleep(0)
        with lifecycle.admitted():
            lifecycle.hurry()
        assert await draining is DrainEnd.HURRIED

        lifecycle = Lifecycle()
        lifecycle.became_ready()
        lifecycle.ask_to_drain(skip_notice=True)
        assert await lifecycle.drain(LONG_S, LONG_S) is DrainEnd.EMPTY
        with pytest.raises(Overloaded), lifecycle.admitted():
            pass

    run(test)


def test_a_drain_ends_at_its_timeout() -> None:
    async def test(lifecycle: Lifecycle) -> None:
        with lifecycle.admitted():
            lifecycle.ask_to_drain()
            assert await lifecycle.drain(0, 0.01) is DrainEnd.TIMEOUT

    run(test)


def test_the_timeout_of_a_drain_call_wins_and_the_first_call_decides() -> None:
    async def test(lifecycle: Lifecycle) -> None:
        with lifecycle.admitted():
            lifecycle.ask_to_drain(timeout_s=0.01)
            lifecycle.ask_to_drain(timeout_s=LONG_S)
            assert await lifecycle.drain(0, LONG_S) is DrainEnd.TIMEOUT

    run(test)


def test_a_hurried_drain_leaves_requests_unfinished() -> None:
    async def test(lifecycle: Lifecycle) -> None:
        with lifecycle.admitted():
            lifecycle.ask_to_drain()
            lifecycle.hurry()
            assert await lifecycle.drain(LONG_S, LONG_S) is DrainEnd.HURRIED
            assert lifecycle.num_unfinished == 1

    run(test)


def test_a_failed_pod_stays_failed() -> None:
    lifecycle = Lifecycle()
    lifecycle.failed("gone")
    lifecycle.failed("gone again")
    lifecycle.ask_to_drain()
    assert (lifecycle.state, lifecycle.because) == (ServerState.FAILED, "gone")


def test_who_is_still_arriving_hears_at_once_that_the_pod_takes_no_more() -> None:
    async def test(lifecycle: Lifecycle) -> None:
        async def arrive() -> None:
            async with lifecycle.arriving(LONG_S):
                await asyncio.Event().wait()

        arriving = asyncio.create_task(arrive())
        await asyncio.sleep(0)
        lifecycle.failed("gone")
        with pytest.raises(Overloaded, match="gone") as refused:
            await arriving
        assert refused.value.code == "engine_failed"

    run(test)


def test_who_has_arrived_as_the_pod_stops_taking_any_is_refused() -> None:
    async def test(lifecycle: Lifecycle) -> None:
        with pytest.raises(Overloaded):
            async with lifecycle.arriving(LONG_S):
                lifecycle.failed("gone")

    run(test)
