"""An OpenAI-compatible endpoint on loopback that answers at once, with as many tokens as a script says."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from aiohttp import web

Events = Iterator[dict[str, Any]]


def tokens(body: dict[str, Any]) -> Events:
    """What a sound server streams: one event a token, the last with the reason, then the usage."""
    wanted = int(body["max_tokens"])
    for index in range(wanted):
        yield choice("x", "length" if index == wanted - 1 else None)
    yield usage(len(body["prompt"]), wanted)


def choice(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]}


def usage(num_prompt_tokens: int, num_output_tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_output_tokens}}


class FakeServer:
    """Streams what `script` gives for a request's body; keeps the bodies in order of arrival."""

    def __init__(self, script: Callable[[dict[str, Any]], Events] = tokens, *, done: bool = True) -> None:
        self._script = script
        self._done = done
        self.bodies: list[dict[str, Any]] = []
        self.most_at_once = 0
        self._at_once = 0
        self.hold: asyncio.Event | None = None  # set to keep every stream open until it fires
        self.refuse_with: int | None = None

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/load", self._load)
        return app

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Serve on a free port.

        Yields:
            The base URL.
        """
        runner = web.AppRunner(self.app())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        addresses: Sequence[Any] = runner.addresses
        try:
            yield f"http://127.0.0.1:{addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake"}]})

    async def _load(self, request: web.Request) -> web.Response:
        return web.json_response({"model": "fake", "kernels": "fake-isa"})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.refuse_with is not None:
            return web.json_response({"error": {"message": "no"}}, status=self.refuse_with)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if self.hold is not None:
            await self.hold.wait()
        for event in self._script(body):
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if self._done:
            await response.write(b"data: [DONE]\n\n")
        self._at_once -= 1
        return response
