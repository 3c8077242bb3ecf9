"""`/v1/chat/completions` as the official client sees it."""

from dataclasses import replace

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.server.api.api_server import MODEL, ApiServer

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


def prompt_of(server: ApiServer) -> str:
    token_ids = server.engine.added[-1].prompt_token_ids
    return "".join({256: "<|start|>", 257: "<|end|>"}.get(i) or chr(i) for i in token_ids)


def test_messages_go_through_the_template_and_the_answer_comes_back(server: ApiServer, client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert prompt_of(server) == "<|start|>user:hello<|end|><|start|>"
    assert reply.object == "chat.completion"
    (choice,) = reply.choices
    # The echo of the special tokens is no text.
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "user:hello", "stop")
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (13, 14)


def test_a_chat_may_use_what_the_context_leaves(server: ApiServer, client: openai.OpenAI) -> None:
    client.chat.completions.create(model=MODEL, messages=HELLO)
    assert server.engine.added[-1].sampling.max_tokens == 256 - 13


def test_the_newer_name_of_max_tokens_wins(server: ApiServer, client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=HELLO, max_completion_tokens=3, max_tokens=9)
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("us", "length")


def test_text_parts_are_joined_and_developers_speak_as_the_system(server: ApiServer, client: openai.OpenAI) -> None:
    client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
    )
    assert prompt_of(server) == "<|start|>system:be brief<|end|><|start|>user:a\nb<|end|><|start|>"


@pytest.mark.parametrize("tokens_per_step", [1, 5])
def test_a_stream_names_the_role_once_and_ends_with_a_reason(
    server: ApiServer, client: openai.OpenAI, tokens_per_step: int
) -> None:
    server.engine.tokens_per_step = tokens_per_step
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(chunks) - 1)
    assert "".join(delta.content or "" for delta in deltas) == "user:hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert chunks[0].object == "chat.completion.chunk"


def test_usage_of_a_stream_comes_last_and_without_choices(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=HELLO, n=2, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (13, 28)
    for index in range(2):
        own = [chunk.choices[0] for chunk in chunks[:-1] if chunk.choices[0].index == index]
        assert "".join(choice.delta.content or "" for choice in own) == "user:hello"
        assert sum(choice.delta.role is not None for choice in own) == 1
        assert sum(choice.finish_reason is not None for choice in own) == 1


def test_a_stream_ends_with_done_on_the_wire(http: httpx.Client) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = reply.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])
    assert "usage" not in reply.text


def test_log_probabilities_come_with_bytes_and_candidates(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "é"}], logprobs=True, top_logprobs=1, max_tokens=8
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert reply.usage is not None
    assert len(logprobs.content) == reply.usage.completion_tokens
    assert b"".join(bytes(token.bytes or []) for token in logprobs.content) == "<|start|>user:é".encode()
    assert [(top.token, top.logprob, top.bytes) for top in logprobs.content[0].top_logprobs] == [("\x00", -1.0, [0])]
    plain = client.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True, max_tokens=1)
    assert plain.choices[0].logprobs is not None
    assert plain.choices[0].logprobs.content is not None
    assert plain.choices[0].logprobs.content[0].top_logprobs == []


def test_held_back_text_comes_when_no_stop_string_came_of_it(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, stop=["hellooo"], stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "user:hello"


def test_stop_strings_work_in_a_stream(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, stop=["hel"], stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "user:"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_model_without_a_template_takes_no_chats(server: ApiServer, client: openai.OpenAI) -> None:
    service = server.state.service
    assert service is not None
    server.state.service = replace(service, template=None)
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client.chat.completions.create(model=MODEL, messages=HELLO)
