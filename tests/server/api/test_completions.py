"""`/v1/completions` as the official client sees it."""

import openai
import pytest

from tests.server.api.api_server import MODEL, ApiServer


def test_a_text_prompt_is_completed_and_counted(client: openai.OpenAI) -> None:
    reply = client.completions.create(model=MODEL, prompt="hello", max_tokens=32)
    assert reply.object == "text_completion"
    assert reply.model == MODEL
    assert [(choice.index, choice.text, choice.finish_reason) for choice in reply.choices] == [(0, "hello", "stop")]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (5, 6, 11)
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 2


def test_sixteen_tokens_are_given_unless_more_are_asked_for(client: openai.OpenAI) -> None:
    reply = client.completions.create(model=MODEL, prompt="x" * 40)
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("x" * 16, "length")


def test_token_ids_are_prompts_too(client: openai.OpenAI) -> None:
    reply = client.completions.create(model=MODEL, prompt=[[104, 105], [106]], max_tokens=8)
    assert [choice.text for choice in reply.choices] == ["hi", "j"]
    single = client.completions.create(model=MODEL, prompt=[104, 105], max_tokens=8)
    assert [choice.text for choice in single.choices] == ["hi"]


def test_prompts_times_choices_come_in_order(server: ApiServer, client: openai.OpenAI) -> None:
    reply = client.completions.create(model=MODEL, prompt=["a", "bc"], n=2, seed=7, max_tokens=8)
    assert [(choice.index, choice.text) for choice in reply.choices] == [(0, "a"), (1, "a"), (2, "bc"), (3, "bc")]
    assert [request.sampling.choice for request in server.engine.added] == [0, 1, 0, 1]
    assert {request.sampling.seed for request in server.engine.added} == {7}
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 3, "a prompt counts once, however many choices it has"
    assert reply.usage.completion_tokens == 2 + 2 + 3 + 3
    assert server.count("tidegate_prompt_length_tokens_count") == 2
    assert server.count("tidegate_prompt_length_tokens_sum") == server.count("tidegate_prompt_tokens_total") == 3


def test_the_choices_of_a_prompt_name_its_first_as_the_one_who_computes_it(
    server: ApiServer, client: openai.OpenAI
) -> None:
    client.completions.create(model=MODEL, prompt=["ab", "cd"], n=3, max_tokens=1)
    names = [request.request_id.rpartition("-")[2] for request in server.engine.added]
    leaders = [request.leader_id.rpartition("-")[2] for request in server.engine.added]
    assert (names, leaders) == (list("012345"), ["", "0", "0", "", "3", "3"])


@pytest.mark.parametrize("tokens_per_step", [1, 2, 3, 100])
def test_a_stop_string_ends_the_text_before_itself(
    server: ApiServer, client: openai.OpenAI, tokens_per_step: int
) -> None:
    server.engine.tokens_per_step = tokens_per_step
    reply = client.completions.create(model=MODEL, prompt="one, two, three", max_tokens=32, stop=["two", ", t"])
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("one", "stop")
    assert reply.usage is not None
    assert reply.usage.completion_tokens == len("one, t")
    server.until(lambda: server.engine.aborted == [server.engine.added[0].request_id] or tokens_per_step == 100)


def test_a_stop_string_that_never_comes_holds_nothing_back(client: openai.OpenAI) -> None:
    reply = client.completions.create(model=MODEL, prompt="one, tw", max_tokens=32, stop="two")
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("one, tw", "stop")


def test_stop_strings_do_not_count_before_min_tokens(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model=MODEL, prompt="a.b.c", max_tokens=32, stop=".", extra_body={"min_tokens": 3}
    )
    assert reply.choices[0].text == "a.b"


def test_an_end_token_is_no_text_and_may_be_ignored(client: openai.OpenAI) -> None:
    stopped = client.completions.create(model=MODEL, prompt="abc", max_tokens=8, extra_body={"stop_token_ids": [98]})
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("a", "stop")
    endless = client.completions.create(model=MODEL, prompt="abc", max_tokens=8, extra_body={"ignore_eos": True})
    assert (endless.choices[0].text, endless.choices[0].finish_reason) == ("abcabcab", "length")


def test_log_probabilities_come_with_every_token(client: openai.OpenAI) -> None:
    reply = client.completions.create(model=MODEL, prompt="hé", max_tokens=3, logprobs=2)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["h", "bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs.token_logprobs == [-0.5, -0.5, -0.5]
    assert logprobs.text_offset == [0, 1, 1]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"\x00": -1.0, "\x01": -2.0, "h": -0.5}


def test_a_stream_gives_the_same_text_in_pieces(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model=MODEL, prompt="héllo", max_tokens=32, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "héllo"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_the_last_chunk_of_a_stream_tells_the_usage_when_asked(client: openai.OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model=MODEL, prompt=["ab", "c"], max_tokens=32, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (3, 5)
    texts = dict.fromkeys(range(2), "")
    for chunk in chunks[:-1]:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "ab", 1: "c"}


def test_sampling_fields_reach_the_engine(server: ApiServer, client: openai.OpenAI) -> None:
    client.completions.create(
        model=MODEL,
        prompt="a",
        max_tokens=8,
        temperature=0.5,
        top_p=0.9,
        seed=-3,
        extra_body={"top_k": 40, "min_tokens": 1, "priority": 2, "cache_salt": "tenant"},
    )
    (request,) = server.engine.added
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 40, -3)
    assert (sampling.max_tokens, sampling.min_tokens, sampling.logprobs) == (8, 1, None)
    assert (request.priority, request.cache_salt) == (2, "tenant")


def test_the_length_is_cut_to_what_the_context_leaves(server: ApiServer, client: openai.OpenAI) -> None:
    reply = client.completions.create(model=MODEL, prompt="x" * 250, max_tokens=100, extra_body={"ignore_eos": True})
    assert (len(reply.choices[0].text), reply.choices[0].finish_reason) == (6, "length")
