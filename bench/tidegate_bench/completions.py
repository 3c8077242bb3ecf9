"""One streamed completion against an OpenAI-compatible endpoint, as its client sees it."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from tidegate_bench.record import RequestRecord
from tidegate_bench.workloads import PlannedRequest

MAX_ERROR_CHARS = 200


class CompletionFailed(Exception):
    """The server answered, but not with the completion that was asked for."""


def completion_body(model: str, request: PlannedRequest) -> dict[str, Any]:
    """What goes over the wire: greedy, exact length, one event per piece of text, the token counts at the end."""
    return {
        "model": model,
        "prompt": list(request.prompt_token_ids),
        "max_tokens": request.num_output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def stream_completion(
    session: aiohttp.ClientSession, base_url: str, model: str, request: PlannedRequest, now_s: Callable[[], float]
) -> RequestRecord:
    """Ask for one completion and note when each piece of its text came; a failure is a record too.

    Args:
        base_url: without `/v1`.
        now_s: seconds since the workload's start.
    """
    sent_s = now_s()
    event_times_s: list[float] = []
    usage = (0, 0)
    error: str | None = None
    try:
        async for event in _events(session, f"{base_url}/v1/completions", completion_body(model, request)):
            if _has_text(event):
                event_times_s.append(now_s())
            usage = _usage(event) or usage
        error = _problem(request, usage, len(event_times_s))
    except (aiohttp.ClientError, CompletionFailed, TimeoutError, ValueError) as failure:
        error = f"{type(failure).__name__}: {failure}"[:MAX_ERROR_CHARS]
    return RequestRecord(
        index=request.index,
        arrival_s=request.arrival_s,
        sent_s=sent_s,
        event_times_s=tuple(event_times_s),
        end_s=now_s(),
        num_prompt_tokens=usage[0],
        num_output_tokens=usage[1],
        error=error,
    )


async def _events(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """The stream's events, until `[DONE]`."""
    async with session.post(url, json=body) as response:
        if response.status != 200:
            raise CompletionFailed(f"HTTP {response.status}: {(await response.text())[:MAX_ERROR_CHARS]}")
        async for line in response.content:
            if not line.startswith(b"data:"):
                continue
            payload = line[len(b"data:") :].strip()
            if payload == b"[DONE]":
                return
            event = json.loads(payload)
            if not isinstance(event, dict):
                raise CompletionFailed(f"an event that is no object: {payload[:MAX_ERROR_CHARS]!r}")
            if event.get("error"):
                raise CompletionFailed(f"error in the stream: {json.dumps(event['error'])[:MAX_ERROR_CHARS]}")
            yield event
    raise CompletionFailed("the stream ended without [DONE]")


def _has_text(event: dict[str, Any]) -> bool:
    """Whether a client would show something, or learns that it has everything.

    Token ids drawn at random also give tokens that are half a character: a server that holds them back sends nothing,
    one that does not sends an empty text. Neither counts, so both are measured alike.
    """
    choices = event.get("choices") or ()
    return any(choice.get("text") or choice.get("finish_reason") for choice in choices)


def _usage(event: dict[str, Any]) -> tuple[int, int] | None:
    usage = event.get("usage")
    return (int(usage["prompt_tokens"]), int(usage["completion_tokens"])) if usage else None


def _problem(request: PlannedRequest, usage: tuple[int, int], num_events: int) -> str | None:
    """Why a finished stream still is not the work that was asked for."""
    num_prompt_tokens, num_output_tokens = usage
    if num_events == 0:
        return "the stream held no text"
    if num_prompt_tokens != len(request.prompt_token_ids):
        return f"the server counted {num_prompt_tokens} prompt tokens of {len(request.prompt_token_ids)}"
    if num_output_tokens != request.num_output_tokens:
        return f"{num_output_tokens} output tokens of {request.num_output_tokens}: is ignore_eos honoured?"
    return None
