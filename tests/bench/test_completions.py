import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from tests.bench.fake_server import Events, FakeServer, choice, tokens, usage
from tidegate_bench.completions import stream_completion
from tidegate_bench.record import RequestRecord
from tidegate_bench.workloads import PlannedRequest

REQUEST = PlannedRequest(index=7, arrival_s=0.0, prompt_token_ids=(1000, 1001, 1002), num_output_tokens=4)


def ticking() -> Callable[[], float]:
    """A clock that moves by one second each time it is read."""
    ticks = iter(range(1_000))
    return lambda: float(next(ticks))


def complete(server: FakeServer, request: PlannedRequest = REQUEST) -> RequestRecord:
    async def run() -> RequestRecord:
        async with server.running() as base_url, aiohttp.ClientSession() as session:
            return await stream_completion(session, base_url, "fake", request, ticking())

    return asyncio.run(run())


def test_each_piece_of_text_is_noted_when_it_comes() -> None:
    record = complete(FakeServer())
    # The clock was read at the sending, at four tokens and at the end.
    assert record == RequestRecord(7, 0.0, 0.0, (1.0, 2.0, 3.0, 4.0), 5.0, 3, 4)


def test_asks_for_token_ids_greedy_and_an_exact_length() -> None:
    server = FakeServer()
    complete(server)
    assert server.bodies == [
        {
            "model": "fake",
            "prompt": [1000, 1001, 1002],
            "max_tokens": 4,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_events_without_text_are_no_tokens_to_a_client() -> None:
    def halves(body: dict[str, Any]) -> Events:
        yield choice("")
        yield choice("ab")
        yield choice("")
        yield choice("", "length")
        yield usage(3, 4)

    assert complete(FakeServer(halves)).event_times_s == (1.0, 2.0)


def stops_early(body: dict[str, Any]) -> Events:
    yield choice("x", "stop")
    yield usage(3, 1)


def counts_another_prompt(body: dict[str, Any]) -> Events:
    yield choice("x", "length")
    yield usage(4, 4)


def breaks_off(body: dict[str, Any]) -> Events:
    yield choice("x")
    yield {"error": {"message": "engine died"}}


def says_nothing(body: dict[str, Any]) -> Events:
    yield usage(3, 4)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        pytest.param(stops_early, "1 output tokens of 4: is ignore_eos honoured?", id="fewer tokens than asked for"),
        pytest.param(counts_another_prompt, "the server counted 4 prompt tokens of 3", id="a prompt changed"),
        pytest.param(breaks_off, "engine died", id="an error inside the stream"),
        pytest.param(says_nothing, "no text", id="no text at all"),
    ],
)
def test_finished_stream_that_is_not_the_work_asked_for_is_a_failure(
    script: Callable[[dict[str, Any]], Events], error: str
) -> None:
    record = complete(FakeServer(script))
    assert record.error is not None
    assert error in record.error


def test_stream_that_ends_without_done_is_a_failure() -> None:
    record = complete(FakeServer(tokens, done=False))
    assert record.error == "CompletionFailed: the stream ended without [DONE]"


def test_refusal_is_a_failure_with_status_and_body() -> None:
    server = FakeServer()
    server.refuse_with = 503
    record = complete(server)
    assert record.error is not None
    assert "HTTP 503" in record.error
    assert "no" in record.error
    assert record.event_times_s == ()


def test_nobody_listening_is_a_failure_and_no_exception() -> None:
    async def run() -> RequestRecord:
        async with aiohttp.ClientSession() as session:
            return await stream_completion(session, "http://127.0.0.1:1", "fake", REQUEST, ticking())

    record = asyncio.run(run())
    assert record.error is not None
    assert "Connect" in record.error
