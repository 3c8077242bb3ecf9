"""Deltas of a generation as OpenAI's completion: whole, or chunk by chunk."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from tidegate_server.api.choice_text import Delta, TokenDetail
from tidegate_server.api.generation import Generation, RunningGeneration
from tidegate_server.api.schema import CompletionChoice, CompletionLogprobs, CompletionReply, Usage
from tidegate_server.api.sse import event
from tidegate_server.api.usage import UsageCount
from tidegate_server.text.tokenizer import Tokenizer

OBJECT = "text_completion"


async def whole_completion(running: RunningGeneration, created: int) -> CompletionReply:
    """Wait for all choices."""
    generation = running.request
    usage = UsageCount(generation)
    texts: list[list[str]] = [[] for _ in range(generation.num_choices)]
    details: list[list[TokenDetail]] = [[] for _ in texts]
    finishes: list[str | None] = [None for _ in texts]
    async with aclosing(running.deltas()) as deltas:
        async for delta in deltas:
            usage.add(delta)
            texts[delta.choice].append(delta.text)
            details[delta.choice].extend(delta.details)
            finishes[delta.choice] = delta.finish
    choices = [
        CompletionChoice(
            index=index,
            text="".join(texts[index]),
            logprobs=_logprobs(generation, details[index]),
            finish_reason=finishes[index],
        )
        for index in range(generation.num_choices)
    ]
    return _reply(generation, created, choices, usage.total())


async def completion_events(
    running: RunningGeneration, created: int, *, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """One event for each delta that has something to say, and one with the usage when asked for."""
    generation = running.request
    usage = UsageCount(generation)
    # OpenAI writes a null usage into every chunk of a stream whose last chunk will have one.
    null_usage: msgspec.UnsetType | None = None if include_usage else msgspec.UNSET
    async with aclosing(running.deltas()) as deltas:
        async for delta in deltas:
            usage.add(delta)
            if delta.text or delta.details or delta.finish:
                yield event(_reply(generation, created, [_chunk_choice(generation, delta)], null_usage))
    if include_usage:
        yield event(_reply(generation, created, [], usage.total()))


def _chunk_choice(generation: Generation, delta: Delta) -> CompletionChoice:
    return CompletionChoice(
        index=delta.choice,
        text=delta.text,
        logprobs=_logprobs(generation, delta.details),
        finish_reason=delta.finish,
    )


def _reply(
    generation: Generation, created: int, choices: list[CompletionChoice], usage: Usage | msgspec.UnsetType | None
) -> CompletionReply:
    return CompletionReply(
        id=generation.request_id,
        object=OBJECT,
        created=created,
        model=generation.service.model_name,
        choices=choices,
        usage=usage,
    )


def _logprobs(generation: Generation, details: Sequence[TokenDetail]) -> CompletionLogprobs | None:
    if generation.wanted.logprobs is None:
        return None
    tokenizer = generation.service.tokenizer
    return CompletionLogprobs(
        text_offset=[detail.text_offset for detail in details],
        token_logprobs=[detail.logprob for detail in details],
        tokens=[token_name(tokenizer, detail.token_id) for detail in details],
        top_logprobs=[_candidates(tokenizer, detail) for detail in details],
    )


def _candidates(tokenizer: Tokenizer, detail: TokenDetail) -> dict[str, float]:
    """The most probable tokens and the drawn one, which need not be among them."""
    candidates = {token_name(tokenizer, token_id): logprob for token_id, logprob in detail.top}
    candidates.setdefault(token_name(tokenizer, detail.token_id), detail.logprob)
    return candidates


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """A token's text, or its bytes in OpenAI's notation when they are no whole characters."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
