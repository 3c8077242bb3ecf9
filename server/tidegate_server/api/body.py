"""A request's body, within bounds, and its client, who may leave."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from tidegate_server.errors import RequestTooLarge

MAX_BODY_BYTES = 32 << 20  # a context of a million token ids fits four times
BODY_TIMEOUT_S = 120.0  # for the whole of it: the largest at 280 kB/s

T = TypeVar("T")


async def read_body(receive: Receive) -> bytes:
    """The whole body.

    Raises:
        RequestTooLarge: more than `MAX_BODY_BYTES`.
        ClientDisconnect: the client left meanwhile.
    """
    pieces: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        size_bytes += len(piece)
        if size_bytes > MAX_BODY_BYTES:
            raise RequestTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes", code="body_too_large")
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


def replayed(body: bytes, receive: Receive) -> Receive:
    """What an application receives of a request whose body has been read: the body at once, then what comes."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return unread.pop() if unread else await receive()

    return receive_again


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run the work to its end, or cancel it as soon as the client has left.

    Raises:
        ClientDisconnect: the client left.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_client_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _client_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
