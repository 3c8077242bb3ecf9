import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.bench.fake_server import Events, FakeServer, choice, tokens, usage
from tidegate_server.bench.http_target import HttpTarget
from tidegate_server.bench.target import RequestFailed, Usage

PROMPT = (1000, 1001, 1002)


def complete(server: FakeServer, *, ignore_eos: bool = True) -> tuple[Usage, int]:
    """One completion of four tokens; its usage, and how often tokens came."""

    async def run() -> tuple[Usage, int]:
        pieces: list[int] = []
        async with (
            server.running() as base_url,
            HttpTarget(f"{base_url}/v1", "fake", vocab_size=2000, ignore_eos=ignore_eos) as target,
        ):
            return await target.complete(7, PROMPT, 4, pieces.append), len(pieces)

    return asyncio.run(run())


def test_a_stream_gives_its_usage_and_tells_each_piece() -> None:
    assert complete(FakeServer()) == (Usage(3, 4), 4)


def test_it_asks_for_token_ids_greedily_and_for_an_exact_length() -> None:
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


def test_ignore_eos_is_left_out_for_servers_that_do_not_know_it() -> None:
    server = FakeServer()
    complete(server, ignore_eos=False)
    assert "ignore_eos" not in server.bodies[0]


def test_events_without_text_are_no_tokens_to_a_client() -> None:
    def halves(body: dict[str, Any]) -> Events:
        yield choice("")
        yield choice("ab")
        yield choice("", "length")
        yield usage(3, 4)

    assert complete(FakeServer(halves)) == (Usage(3, 4), 2)


def test_without_a_usage_each_piece_counts_as_a_token() -> None:
    def no_usage(body: dict[str, Any]) -> Events:
        yield choice("a")
        yield choice("b", "stop")

    assert complete(FakeServer(no_usage)) == (Usage(3, 2), 2)


def breaks_off(body: dict[str, Any]) -> Events:
    yield choice("x")
    yield {"error": {"message": "engine died"}}


def is_nonsense(body: dict[str, Any]) -> Events:
    yield {"choices": 3}


@pytest.mark.parametrize(
    ("script", "error"),
    [
        pytest.param(breaks_off, "engine died", id="an error inside the stream"),
        pytest.param(is_nonsense, "an event that is no completion", id="an event of another shape"),
    ],
)
def test_a_stream_that_is_no_completion_is_a_failure(script: Callable[[dict[str, Any]], Events], error: str) -> None:
    with pytest.raises(RequestFailed, match=error):
        complete(FakeServer(script))


def test_a_stream_that_ends_without_done_is_a_failure() -> None:
    with pytest.raises(RequestFailed, match="without"):
        complete(FakeServer(tokens, done=False))


def test_a_refusal_is_a_failure_with_status_and_body() -> None:
    server = FakeServer()
    server.refuse_with = 503
    with pytest.raises(RequestFailed, match=r"^HTTP 503: .*no"):
        complete(server)


def test_nobody_listening_is_a_failure() -> None:
    async def run() -> None:
        async with HttpTarget("http://127.0.0.1:1/v1", "fake", vocab_size=2000, ignore_eos=True) as target:
            await target.complete(0, PROMPT, 4, lambda count: None)

    with pytest.raises(RequestFailed, match=r"^ConnectError"):
        asyncio.run(run())
