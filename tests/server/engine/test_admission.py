"""What is refused at the door, and with which words."""

import re

import pytest

from tidegate_server.engine.admission import Capacity, QueueLimits, queue_refusal, refusal
from tidegate_server.engine.sampling_params import SamplingParams

CAPACITY = Capacity(max_model_len=64, num_kv_blocks=3, block_size=16, vocab_size=100)  # 48 tokens of KV cache


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "expected"),
    [
        pytest.param([], 4, "has no tokens", id="an empty prompt"),
        pytest.param([1], 0, "max_tokens is 0", id="nothing asked for"),
        pytest.param([1] * 64, 4, "64 tokens .* context holds 64", id="longer than the context"),
        pytest.param([1] * 48, 4, "48 tokens .* holds 48 tokens", id="longer than the cache"),
        pytest.param([1, -1], 4, "token id -1", id="a token below the vocabulary"),
        pytest.param([1, 100], 4, "token id 100", id="a token above the vocabulary"),
    ],
)
def test_what_can_never_run_is_refused_with_the_numbers(prompt: list[int], max_tokens: int, expected: str) -> None:
    problem = refusal(prompt, SamplingParams(max_tokens=max_tokens), CAPACITY)
    assert problem is not None
    assert re.search(expected, problem)


def test_what_fits_with_one_more_token_is_taken() -> None:
    assert refusal([99] * 47, SamplingParams(max_tokens=1), CAPACITY) is None


@pytest.mark.parametrize(
    ("num_tokens", "queued", "limits", "expected"),
    [
        pytest.param(10, (3, 999), QueueLimits(), None, id="without limits nothing is refused"),
        pytest.param(10, (2, 20), QueueLimits(max_requests=3), None, id="one more request fits"),
        pytest.param(10, (3, 30), QueueLimits(max_requests=3), "3 requests wait", id="no more requests fit"),
        pytest.param(10, (1, 20), QueueLimits(max_tokens=30), None, id="the tokens fit exactly"),
        pytest.param(11, (1, 20), QueueLimits(max_tokens=30), "20 tokens wait.* 11 of this", id="too many tokens"),
        pytest.param(99, (0, 0), QueueLimits(max_tokens=30), None, id="an empty queue takes any prompt"),
        pytest.param(1, (3, 3), QueueLimits(max_requests=3, max_tokens=99), "no more than 3", id="either limit counts"),
    ],
)
def test_a_full_queue_takes_nobody(
    num_tokens: int, queued: tuple[int, int], limits: QueueLimits, expected: str | None
) -> None:
    problem = queue_refusal(num_tokens, *queued, limits)
    if expected is None:
        assert problem is None
    else:
        assert problem is not None
        assert re.search(expected, problem)
