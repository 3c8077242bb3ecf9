"""A request's sampling fields: what is cut to what fits, and what is refused."""

from typing import Any

import pytest

from tidegate_server.api.sampling import (
    LARGEST_TEMPERATURE,
    MAX_STOP_TOKEN_IDS,
    Limits,
    Wanted,
    wanted_by_chat,
    wanted_by_completion,
)
from tidegate_server.api.schema import ChatCompletionRequest, CompletionRequest
from tidegate_server.errors import InvalidRequest

LIMITS = Limits(max_model_len=64, kv_tokens=256, vocab_size=4000, eos_token_ids=(2, 3))
TINY = Limits(max_model_len=64, kv_tokens=256, vocab_size=5, eos_token_ids=(2, 3, 99))


def wanted(limits: Limits = LIMITS, **fields: Any) -> Wanted:
    return wanted_by_completion(CompletionRequest(prompt="a", **fields), 1, limits)


def test_a_stop_token_counts_once() -> None:
    assert wanted(stop_token_ids=[7, 5, 7, 7, 5]).stop_token_ids == (7, 5)
    assert len(wanted(stop_token_ids=list(range(MAX_STOP_TOKEN_IDS)) * 9).stop_token_ids) == MAX_STOP_TOKEN_IDS


def test_too_many_stop_tokens_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="1025 tokens are more than 1024") as refused:
        wanted(stop_token_ids=list(range(MAX_STOP_TOKEN_IDS + 1)))
    assert refused.value.param == "stop_token_ids"


def test_min_tokens_needs_a_token_that_may_be_drawn() -> None:
    with pytest.raises(InvalidRequest, match="leave min_tokens out") as refused:
        wanted(TINY, min_tokens=1, stop_token_ids=[0, 1, 4])
    assert refused.value.param == "min_tokens"
    with pytest.raises(InvalidRequest, match="leave min_tokens out"):
        wanted(TINY, min_tokens=1, stop_token_ids=[0, 1, 2, 3, 4], ignore_eos=True)
    assert wanted(TINY, min_tokens=1, stop_token_ids=[0, 1, 4], ignore_eos=True).min_tokens == 1
    assert wanted(TINY, min_tokens=1, stop_token_ids=[0, 1]).min_tokens == 1
    assert wanted(TINY, stop_token_ids=[0, 1, 2, 3, 4]).min_tokens == 0


@pytest.mark.parametrize("size", [4000, 4001, 2**63, 2**64, 10**30])
def test_a_top_k_of_at_least_the_vocabulary_keeps_all_of_it(size: int) -> None:
    assert wanted(top_k=size).top_k == 4000


@pytest.mark.parametrize("temperature", [1e39, 1e308])
def test_a_temperature_past_fp32_is_cut_to_it(temperature: float) -> None:
    assert wanted(temperature=temperature).temperature == LARGEST_TEMPERATURE


def test_no_candidates_may_be_asked_for_without_logprobs() -> None:
    request = ChatCompletionRequest(messages=[], top_logprobs=0)
    assert wanted_by_chat(request, LIMITS).logprobs is None
