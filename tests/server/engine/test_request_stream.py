import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

from tidegate_server.engine.messages import FinishReason, RequestOutput
from tidegate_server.engine.request_stream import Inbox, RequestStream
from tidegate_server.errors import DeadlineExceeded, EngineError, InvalidRequest, Overloaded, RequestError


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def output(token: int, finish_reason: FinishReason | None = None, **more: Any) -> RequestOutput:
    return RequestOutput(request_id="a", token_ids=(token,), finish_reason=finish_reason, **more)


def open_stream() -> tuple[Inbox, RequestStream, list[str]]:
    """A stream and the ids of those who left before the end."""
    left: list[str] = []
    inbox = Inbox("a")
    return (
        inbox,
        RequestStream(inbox, lambda box: None if box.is_complete else left.append(box.request_id), lambda: 17),
        left,
    )


def test_outputs_come_in_order_and_end_with_a_finish_reason() -> None:
    async def main() -> None:
        inbox, stream, left = open_stream()
        for each in (output(1), output(2), output(3, FinishReason.STOP), output(4)):
            inbox.put(each)
        assert [each.token_ids for each in [o async for o in stream]] == [(1,), (2,), (3,)]
        await stream.aclose()
        assert left == []

    run(main())


def test_a_reader_that_waits_is_woken() -> None:
    async def main() -> None:
        inbox, stream, _ = open_stream()
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        inbox.put(output(1))
        assert (await reading).token_ids == (1,)

    run(main())


@pytest.mark.parametrize(
    ("why", "kind", "code"),
    [
        ({}, EngineError, "engine_error"),
        ({"refused": True}, InvalidRequest, "context_length_exceeded"),
        ({"overloaded": True}, Overloaded, "queue_full"),
        ({"timed_out": True}, DeadlineExceeded, "deadline_exceeded"),
    ],
)
def test_a_failed_request_raises_what_became_of_it(why: dict[str, bool], kind: type[RequestError], code: str) -> None:
    async def main() -> None:
        inbox, stream, _ = open_stream()
        inbox.put(output(1))
        inbox.put(output(2, FinishReason.ERROR, error="the reason", **why))
        assert (await anext(stream)).token_ids == (1,)
        with pytest.raises(kind, match="the reason") as raised:
            await anext(stream)
        assert raised.value.code == code
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    run(main())


def test_who_found_the_queue_full_hears_when_to_come_again() -> None:
    async def main() -> None:
        inbox, stream, _ = open_stream()
        inbox.put(RequestOutput(request_id="a", finish_reason=FinishReason.ERROR, error="full", overloaded=True))
        with pytest.raises(Overloaded) as raised:
            await anext(stream)
        assert raised.value.retry_after_s == 17

    run(main())


def test_closing_early_leaves_once() -> None:
    async def main() -> None:
        inbox, stream, left = open_stream()
        inbox.put(output(1))
        await stream.aclose()
        await stream.aclose()
        inbox.put(output(2))
        assert [o async for o in stream] == []
        assert left == ["a"]

    run(main())


def test_cancelling_the_reader_leaves() -> None:
    async def main() -> None:
        _, stream, left = open_stream()
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert left == ["a"]

    run(main())


def test_a_forgotten_stream_leaves() -> None:
    async def main() -> None:
        inbox, stream, left = open_stream()
        inbox.put(output(1))
        async for _ in stream:
            break
        del stream
        gc.collect()
        await asyncio.sleep(0)
        assert left == ["a"]

    run(main())
