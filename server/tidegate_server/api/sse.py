"""Server-sent events: a stream of chunks as an HTTP reply that ends when its client leaves."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import msgspec
import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidegate_server.api.envelope import error_reply, internal_error
from tidegate_server.errors import RequestError

log = structlog.get_logger(__name__)

_encoder = msgspec.json.Encoder()

DONE = b"data: [DONE]\n\n"


def event(payload: msgspec.Struct) -> bytes:
    """One event with one JSON document."""
    return b"data: " + _encoder.encode(payload) + b"\n\n"


class EventStream(Response):
    """Sends events as they come, and the headers with the first of them.

    So an error before it, such as a queue that is full or a wait that was too long, still gets its status. One after it
    becomes a last event with the error envelope, and no `[DONE]` follows: that word means complete. When the client
    leaves, the events' iterator is closed at once.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], close: Callable[[], Awaitable[None]]) -> None:
        """
        Args:
            close: called when the reply is over, whichever way; closing a generator that was never begun tells its
                source nothing.
        """
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_client_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()  # nothing happens when it is done
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._close()
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            first = await anext(events)  # what it raises is answered as the error of any route
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for data in _with_last_word(events):
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _with_last_word(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The rest of the events, and after them that they are complete, or why they are not."""
    try:
        async for data in events:
            yield data
        yield DONE
    except RequestError as error:
        yield event(error_reply(error))
    except Exception:
        log.exception("stream_crashed", next="its client gets an error as the last event; others go on")
        yield event(error_reply(internal_error()))


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
