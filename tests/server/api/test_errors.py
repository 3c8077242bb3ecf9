"""What the API says to wrong requests: one envelope, the right status, the field's path."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.server.api.api_server import MODEL, ApiServer
from tests.server.api.echo_engine import CRASH_TOKEN, EchoStream
from tests.server.api.half_request import everything_of, half_sent
from tidegate_server.api.choice_text import ChoiceText, Delta
from tidegate_server.engine.messages import RequestOutput
from tidegate_server.errors import Overloaded

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def shared() -> Iterator[httpx.Client]:
    """One server for the many requests that change nothing."""
    with ApiServer() as server, httpx.Client(base_url=server.url, timeout=30) as http:
        yield http


def error_of(reply: httpx.Response, status: int) -> dict[str, Any]:
    """The body's error, after checking that it is the envelope and nothing else."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["message"]
    return dict(body["error"])


WRONG_FIELDS = [
    (COMPLETIONS, {}, "prompt"),
    (COMPLETIONS, {"prompt": 5}, "prompt"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", 1]}, "prompt"),
    (COMPLETIONS, {"prompt": [1, 2, -1]}, "prompt[2]"),
    (COMPLETIONS, {"prompt": [[1], [2, 300]]}, "prompt[1][1]"),
    (COMPLETIONS, {"prompt": [[1], []]}, "prompt[1]"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": "5"}, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "temperature": -0.1}, "temperature"),
    (COMPLETIONS, {"prompt": "a", "temperature": "hot"}, "temperature"),
    (COMPLETIONS, {"prompt": "a", "top_p": 0}, "top_p"),
    (COMPLETIONS, {"prompt": "a", "top_p": 1.1}, "top_p"),
    (COMPLETIONS, {"prompt": "a", "top_k": -2}, "top_k"),
    (COMPLETIONS, {"prompt": "a", "n": 0}, "n"),
    (COMPLETIONS, {"prompt": ["a"] * 65, "n": 2}, "n"),
    (COMPLETIONS, {"prompt": "a", "seed": 2**63}, "seed"),
    (COMPLETIONS, {"prompt": "a", "priority": 2**40}, "priority"),
    (COMPLETIONS, {"prompt": "a", "stop": ["b", ""]}, "stop[1]"),
    (COMPLETIONS, {"prompt": "a", "stop": ""}, "stop"),
    (COMPLETIONS, {"prompt": "a", "stop": [1]}, "stop[0]"),
    (COMPLETIONS, {"prompt": "a", "stop_token_ids": [258]}, "stop_token_ids[0]"),
    (COMPLETIONS, {"prompt": "a", "min_tokens": 17}, "min_tokens"),
    (COMPLETIONS, {"prompt": "a", "min_tokens": 1, "stop_token_ids": list(range(258))}, "min_tokens"),
    (COMPLETIONS, {"prompt": "a", "logprobs": 21}, "logprobs"),
    (COMPLETIONS, {"prompt": "a", "logprobs": True}, "logprobs"),
    (COMPLETIONS, {"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
    (COMPLETIONS, {"prompt": "a", "echo": True}, "echo"),
    (COMPLETIONS, {"prompt": "a", "suffix": "z"}, "suffix"),
    (COMPLETIONS, {"prompt": "a", "best_of": 3}, "best_of"),
    (COMPLETIONS, {"prompt": "a", "presence_penalty": 0.5}, "presence_penalty"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias"),
    (CHAT, {}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": "hi"}, "messages"),
    (CHAT, {"messages": [{"content": "hi"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [USER, {"role": "user", "content": 5}]}, "messages[1].content"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
    ),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (CHAT, {"messages": [USER], "max_completion_tokens": 0}, "max_completion_tokens"),
    (CHAT, {"messages": [USER], "top_logprobs": 3}, "top_logprobs"),
    (CHAT, {"messages": [USER], "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"messages": [{**USER, "tool_calls": [{"id": "a"}]}]}, "messages[0].tool_calls"),
    (CHAT, {"messages": [USER, {**USER, "function_call": {"name": "f"}}]}, "messages[1].function_call"),
    (CHAT, {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    (CHAT, {"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]}, "messages[0].role"),
    (
        CHAT,
        {"messages": [USER], "stream": True, "stream_options": {"continuous_usage_stats": True}},
        "stream_options.continuous_usage_stats",
    ),
    (CHAT, {"messages": [USER], "tools": [{"type": "function"}]}, "tools"),
    (CHAT, {"messages": [USER], "response_format": {"type": "json_object"}}, "response_format"),
]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    WRONG_FIELDS,
    ids=[f"{path[4:]} {json.dumps(body)[:60]}" for path, body, _ in WRONG_FIELDS],
)
def test_a_wrong_field_is_a_400_that_names_it(
    shared: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    error = error_of(shared.post(path, json=body), 400)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.split("[")[0].split(".")[0] in error["message"]


def test_a_wrong_field_of_a_stream_is_a_400_too(shared: httpx.Client) -> None:
    error = error_of(shared.post(COMPLETIONS, json={"prompt": "a", "top_p": 2, "stream": True}), 400)
    assert error["param"] == "top_p"


NEUTRAL: dict[str, object] = {
    "tools": [],
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "echo": False,
    "best_of": 1,
    "suffix": None,
    "top_k": -1,
    "user": "somebody",
    "never_heard_of": {"a": 1},
    "stop": None,
    "stream_options": None,
}


def test_fields_that_ask_for_nothing_are_taken(http: httpx.Client) -> None:
    assert http.post(COMPLETIONS, json={"prompt": "a", **NEUTRAL}).status_code == 200
    assert http.post(CHAT, json={"messages": [USER], **NEUTRAL}).status_code == 200


def test_nested_fields_that_ask_for_nothing_are_taken(http: httpx.Client) -> None:
    reply: dict[str, object] = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": [], "odd": 1}
    text_part = {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}
    options = {"include_usage": True, "continuous_usage_stats": False, "include_obfuscation": False}
    body = {"messages": [reply, text_part], "top_logprobs": 0, "stream": True, "stream_options": options}
    assert http.post(CHAT, json=body).status_code == 200


INTEGERS = ("max_tokens", "top_k", "n", "seed", "min_tokens", "priority", "logprobs", "stop_token_ids", "prompt")


@pytest.mark.parametrize("field", INTEGERS)
@pytest.mark.parametrize("num_digits", [10, 19, 20, 30, 5000])
def test_an_integer_of_any_size_gets_an_answer_or_a_400(shared: httpx.Client, field: str, num_digits: int) -> None:
    for sign in ("", "-"):
        number = sign + "9" * num_digits
        given = f"[{number}]" if field in ("stop_token_ids", "prompt") else number
        reply = shared.post(COMPLETIONS, content=f'{{"prompt": "a", "{field}": {given}}}')
        assert reply.status_code in (200, 400), reply.text


# What decoding the known fields passes over.
BROKEN_UNKNOWN = [
    b'{"prompt": "a", "\xff": 1}',
    b'{"prompt": "a", "suffix": "\xff"}',
    b'{"prompt": "a", "stream": true, "stream_options": {"\xff": 1}}',
    b'{"prompt": "a", "tools": ' + b"[" * 5000 + b"]" * 5000 + b"}",
]


@pytest.mark.parametrize(
    "body", [b"{", b"", b"\xff\xfe", b"not json", b'{"prompt": "a"} x', b'{"prompt": "\xff"}', *BROKEN_UNKNOWN]
)
def test_what_is_no_json_is_a_400(shared: httpx.Client, body: bytes) -> None:
    error = error_of(shared.post(COMPLETIONS, content=body), 400)
    assert "JSON" in error["message"]


def test_a_number_that_no_float_holds_is_a_400_that_names_its_field(shared: httpx.Client) -> None:
    for field in ("min_p", "temperature"):
        body = f'{{"prompt": "a", "{field}": 1e999}}'
        assert error_of(shared.post(COMPLETIONS, content=body), 400)["param"] == field


@pytest.mark.parametrize("body", [b"[]", b"null", b"5", b'"text"'])
def test_json_that_is_no_object_is_a_400(shared: httpx.Client, body: bytes) -> None:
    assert "object" in error_of(shared.post(CHAT, content=body), 400)["message"]


def test_an_unknown_model_is_a_404_that_names_the_one_there_is(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'echo'") as refused:
        client.completions.create(model="gpt-9", prompt="a")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_a_prompt_past_the_context_is_a_400_with_both_numbers(client: openai.OpenAI) -> None:
    for prompt_length in (256, 1000):
        with pytest.raises(openai.BadRequestError, match=rf"256 .*{prompt_length}") as refused:
            client.completions.create(model=MODEL, prompt="x" * prompt_length)
        assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 250}])
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
    assert client.completions.create(model=MODEL, prompt="x" * 255).choices[0].finish_reason == "length"


def test_a_prompt_past_the_cache_is_a_400_with_both_numbers() -> None:
    with ApiServer(max_model_len=256, kv_tokens=64) as server, httpx.Client(base_url=server.url) as http:
        error = error_of(http.post(COMPLETIONS, json={"prompt": "x" * 64}), 400)
        assert error["code"] == "context_length_exceeded"
        assert "KV cache holds 64 tokens" in error["message"]
        assert "--num-kv-blocks" in error["message"]
        assert http.post(COMPLETIONS, json={"prompt": "x" * 63}).status_code == 200


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_text_that_cannot_fit_is_refused_without_being_encoded(
    server: ApiServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    service = server.state.service
    assert service is not None
    monkeypatch.setattr(service.tokenizer, "encode", lambda *_, **__: 1 / 0)
    text = "x" * (256 * len("<|start|>"))  # the longest token
    body = {"prompt": text} if path == COMPLETIONS else {"messages": [{"role": "user", "content": text}]}
    error = error_of(http.post(path, json=body), 400)
    assert error["code"] == "context_length_exceeded"
    assert "the prompt has at least" in error["message"]


def test_too_many_prompts_are_refused_before_one_is_encoded(
    server: ApiServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = server.state.service
    assert service is not None
    monkeypatch.setattr(service.tokenizer, "encode", lambda *_, **__: 1 / 0)
    assert error_of(http.post(COMPLETIONS, json={"prompt": ["a"] * 129}), 400)["param"] == "n"


def test_routes_that_are_not_there_answer_in_the_envelope(http: httpx.Client) -> None:
    assert error_of(http.get("/v1/nothing"), 404)["code"] == "not_found"
    assert error_of(http.post("/"), 404)["code"] == "not_found"
    wrong_method = http.get(COMPLETIONS)
    assert error_of(wrong_method, 405)["code"] == "method_not_allowed"
    assert wrong_method.headers["allow"] == "POST"


def test_a_huge_body_is_refused_before_it_is_read(
    server: ApiServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_server.api.body.MAX_BODY_BYTES", 1000)
    assert error_of(http.post(COMPLETIONS, json={"prompt": "x" * 2000}), 413)["code"] == "body_too_large"
    assert server.count("tidegate_requests_total", outcome="refused") == 1


def test_a_body_that_does_not_come_is_a_408(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_server.api.admission.BODY_TIMEOUT_S", 0.01)
    with half_sent(server.url) as connection:
        reply = everything_of(connection)
    assert reply.startswith(b"HTTP/1.1 408")
    assert b'"body_timeout"' in reply
    assert server.count("tidegate_requests_total", outcome="refused") == 1


def test_a_failing_request_is_a_500_and_the_next_one_is_fine(http: httpx.Client) -> None:
    bad = {"prompt": f"abc{chr(CRASH_TOKEN)}"}
    assert "fell off the bus" in error_of(http.post(COMPLETIONS, json=bad), 500)["message"]
    assert http.post(COMPLETIONS, json={"prompt": "abc"}).status_code == 200


def test_an_error_after_the_headers_is_the_last_event_of_the_stream(http: httpx.Client, client: openai.OpenAI) -> None:
    bad = f"abc{chr(CRASH_TOKEN)}"
    reply = http.post(COMPLETIONS, json={"prompt": bad, "stream": True})
    assert reply.status_code == 200
    events = [event.removeprefix("data: ") for event in reply.text.split("\n\n") if event]
    assert "fell off the bus" in json.loads(events[-1])["error"]["message"]
    assert "[DONE]" not in events
    with pytest.raises(openai.APIError, match="fell off the bus"):
        list(client.completions.create(model=MODEL, prompt=bad, stream=True))


def test_one_failing_choice_ends_the_request_and_frees_the_others(server: ApiServer, http: httpx.Client) -> None:
    body = {"prompt": [f"ab{chr(CRASH_TOKEN)}", "x" * 100], "max_tokens": 200, "ignore_eos": True}
    error_of(http.post(COMPLETIONS, json=body), 500)
    server.until(lambda: not server.engine.open_ids)


def test_a_mistake_of_ours_is_a_500_in_the_envelope(
    server: ApiServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.engine, "submit", lambda *_, **__: 1 / 0)
    error = error_of(http.post(COMPLETIONS, json={"prompt": "a"}), 500)
    assert error["code"] == "internal_error"


def test_a_mistake_of_ours_in_a_stream_is_its_last_event(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    take = ChoiceText.take
    taken: list[RequestOutput] = []

    def fail_at_the_second(self: ChoiceText, output: RequestOutput) -> Delta:
        taken.append(output)
        return take(self, output if len(taken) == 1 else None)  # type: ignore[arg-type]  # the mistake

    monkeypatch.setattr(ChoiceText, "take", fail_at_the_second)
    reply = http.post(COMPLETIONS, json={"prompt": "abc", "stream": True})
    events = [event.removeprefix("data: ") for event in reply.text.split("\n\n") if event]
    assert json.loads(events[-1])["error"]["code"] == "internal_error"
    assert http.get("/health").status_code == 200


def test_a_mistake_of_ours_before_the_first_event_of_a_stream_is_a_500(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChoiceText, "take", lambda *_: 1 / 0)
    reply = http.post(COMPLETIONS, json={"prompt": "a", "stream": True})
    assert error_of(reply, 500)["code"] == "internal_error"


@pytest.mark.parametrize("stream", [True, False])
def test_what_the_engine_does_not_take_gets_a_status(
    server: ApiServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    submit = server.engine.submit

    def first_choice_only(request_id: str, *rest: Any, **more: Any) -> EchoStream:
        if not request_id.endswith("-0"):
            raise Overloaded("the engine is gone", code="engine_failed")
        return submit(request_id, *rest, **more)

    monkeypatch.setattr(server.engine, "submit", first_choice_only)
    error = error_of(http.post(CHAT, json={"messages": [USER], "n": 2, "stream": stream}), 503)
    assert error["code"] == "engine_failed"
    assert not server.engine.open_ids, "no choice is left behind"
    assert server.count("tidegate_requests_total", outcome="refused") == 1


def test_models_are_listed(client: openai.OpenAI, http: httpx.Client) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "tidegate")
    assert client.models.retrieve(MODEL).id == MODEL
    assert http.get("/v1/models").json()["data"][0]["max_model_len"] == 256


def test_the_wire_types_are_described(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    body = document["paths"][COMPLETIONS]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/CompletionRequest"}
    assert "temperature" in document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert http.get("/version").json()["version"]
    assert http.get("/health").status_code == 200
