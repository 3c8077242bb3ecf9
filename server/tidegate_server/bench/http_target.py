"""An OpenAI-compatible endpoint as a target: streamed completions, timed event by event."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import httpx2
import msgspec

from tidegate_server.bench.target import RequestFailed, Usage

CONNECT_TIMEOUT_S = 30.0
_MAX_ERROR_CHARS = 200
_END = "[DONE]"


class HttpTarget:
    """One endpoint; use it as a context, which holds its connections."""

    def __init__(
        self, base_url: str, model: str, *, vocab_size: int, ignore_eos: bool, api_key: str | None = None
    ) -> None:
        """
        Args:
            base_url: as OpenAI's clients take it, with `/v1` at its end.
            vocab_size: of the model behind it, or less.
            ignore_eos: send that field, which OpenAI's own API does not know.
        """
        self._url = f"{base_url.rstrip('/')}/completions"
        self._model = model
        self._vocab_size = vocab_size
        self._ignore_eos = ignore_eos
        self._http = httpx2.AsyncClient(
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            # A request may wait as long as its server lets it: that is what is measured.
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
            # No limit on connections: a load generator that queues would measure itself.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        )

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def complete(
        self, index: int, prompt_token_ids: Sequence[int], num_output_tokens: int, on_tokens: Callable[[int], None]
    ) -> Usage:
        body = completion_body(self._model, prompt_token_ids, num_output_tokens, ignore_eos=self._ignore_eos)
        num_pieces = 0
        usage: _Usage | None = None
        try:
            async for event in self._events(body):
                if any(choice.text or choice.finish_reason for choice in event.choices):
                    num_pieces += 1
                    on_tokens(1)
                usage = event.usage or usage
        except httpx2.HTTPError as error:
            raise RequestFailed(f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS]) from error
        if usage is None:  # it does not know `stream_options`
            return Usage(len(prompt_token_ids), num_pieces)
        return Usage(usage.prompt_tokens, usage.completion_tokens)

    async def _events(self, body: dict[str, Any]) -> AsyncIterator["_Event"]:
        """The stream's events, until `[DONE]`.

        Raises:
            RequestFailed: another status than 200, an error in the stream, or a stream without its end.
            httpx2.HTTPError: no connection, or one that broke.
        """
        async with self._http.stream("POST", self._url, json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                raise RequestFailed(f"HTTP {response.status_code}: {' '.join(text.split())}"[:_MAX_ERROR_CHARS])
            async for event in httpx2.EventSource(response):
                if event.data == _END:
                    return
                yield _decoded(event.data)
        raise RequestFailed(f"the stream ended without {_END}")


def completion_body(
    model: str, prompt_token_ids: Sequence[int], num_output_tokens: int, *, ignore_eos: bool
) -> dict[str, Any]:
    """What goes over the wire: greedy, with the token counts at the end."""
    body = {
        "model": model,
        "prompt": list(prompt_token_ids),
        "max_tokens": num_output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return body | {"ignore_eos": True} if ignore_eos else body


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Event)


def _decoded(data: str) -> _Event:
    try:
        event = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise RequestFailed(f"an event that is no completion ({error}): {data}"[:_MAX_ERROR_CHARS]) from None
    if event.error is not None:
        raise RequestFailed(f"error in the stream: {json.dumps(event.error)}"[:_MAX_ERROR_CHARS])
    return event
