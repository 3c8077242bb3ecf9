"""Deltas of a generation as OpenAI's chat completion: whole, or chunk by chunk."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from tidegate_server.api.choice_text import TokenDetail
from tidegate_server.api.generation import Generation, RunningGeneration
from tidegate_server.api.schema import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprob,
    ChatLogprobs,
    ChatReply,
    MessageDelta,
    TopLogprob,
    Usage,
)
from tidegate_server.api.sse import event
from tidegate_server.api.usage import UsageCount
from tidegate_server.text.tokenizer import Tokenizer


async def whole_chat(running: RunningGeneration, created: int) -> ChatReply:
    """Wait for all choices."""
    generation = running.request
    usage = UsageCount(generation)
    texts: list[list[str]] = [[] for _ in range(generation.num_choices)]
    details: list[list[TokenDetail]] = [[] for _ in texts]
    finishes = ["" for _ in texts]
    async with aclosing(running.deltas()) as deltas:
        async for delta in deltas:
            usage.add(delta)
            texts[delta.choice].append(delta.text)
            details[delta.choice].extend(delta.details)
            finishes[delta.choice] = delta.finish or ""
    return ChatReply(
        id=generation.request_id,
        created=created,
        model=generation.service.model_name,
        choices=[
            ChatChoice(
                index=index,
                message=AssistantMessage(content="".join(texts[index])),
                logprobs=_logprobs(generation, details[index]),
                finish_reason=finishes[index],
            )
            for index in range(generation.num_choices)
        ],
        usage=usage.total(),
    )


async def chat_events(running: RunningGeneration, created: int, *, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """The deltas, before a choice's first one a chunk with the role, and at the end the usage when asked for.

    The role waits for the first output, so that the first event tells the time to the first token.
    """
    generation = running.request
    usage = UsageCount(generation)
    # OpenAI writes a null usage into every chunk of a stream whose last chunk will have one.
    null_usage: msgspec.UnsetType | None = None if include_usage else msgspec.UNSET

    def chunk(choices: list[ChatChunkChoice], usage: Usage | msgspec.UnsetType | None) -> bytes:
        return event(
            ChatChunk(
                id=generation.request_id,
                created=created,
                model=generation.service.model_name,
                choices=choices,
                usage=usage,
            )
        )

    has_role: set[int] = set()
    async with aclosing(running.deltas()) as deltas:
        async for delta in deltas:
            usage.add(delta)
            if delta.choice not in has_role:
                has_role.add(delta.choice)
                role = MessageDelta(role="assistant", content="")
                yield chunk(
                    [ChatChunkChoice(index=delta.choice, delta=role, logprobs=None, finish_reason=None)], null_usage
                )
            if not (delta.text or delta.details or delta.finish):
                continue
            choice = ChatChunkChoice(
                index=delta.choice,
                delta=MessageDelta(content=delta.text or None),
                logprobs=_logprobs(generation, delta.details),
                finish_reason=delta.finish,
            )
            yield chunk([choice], null_usage)
    if include_usage:
        yield chunk([], usage.total())


def _logprobs(generation: Generation, details: Sequence[TokenDetail]) -> ChatLogprobs | None:
    if generation.wanted.logprobs is None:
        return None
    tokenizer = generation.service.tokenizer
    return ChatLogprobs(content=[_logprob(tokenizer, detail) for detail in details])


def _logprob(tokenizer: Tokenizer, detail: TokenDetail) -> ChatLogprob:
    return ChatLogprob(
        token=tokenizer.token_text(detail.token_id),
        logprob=detail.logprob,
        bytes=list(tokenizer.token_bytes(detail.token_id)),
        top_logprobs=[
            TopLogprob(
                token=tokenizer.token_text(token_id), logprob=logprob, bytes=list(tokenizer.token_bytes(token_id))
            )
            for token_id, logprob in detail.top
        ],
    )
