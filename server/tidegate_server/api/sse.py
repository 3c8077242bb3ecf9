"""Server-sent events: a stream of chunks as an HTTP reply that ends when its client leaves."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidegate_server.api.envelope import error_reply
from tidegate_server.errors import RequestError

_encoder = msgspec.json.Encoder()

DONE = b"data: [DONE]\n\n"


def event(payload: msgspec.Struct) -> bytes:
    """One event with one JSON document."""
    return b"data: " + _encoder.encode(payload) + b"\n\n"


class EventStream(Response):
    """Sends events as they come.

    When the client leaves, the events' iterator is closed at once, which aborts the request in the engine. An error
    after the headers becomes a last event with the error envelope, and no `[DONE]` follows: that word means complete.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_client_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()  # nothing happens when it is done
            await asyncio.gather(sending, leaving, return_exceptions=True)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                async for data in events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                await send({"type": "http.response.body", "body": DONE, "more_body": True})
            except RequestError as error:
                await send({"type": "http.response.body", "body": event(error_reply(error)), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
