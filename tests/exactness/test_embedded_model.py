"""The embedded model gives transformers' greedy tokens, alone and under everything that a server does to a request.

Log-probabilities are compared with our own of the request run alone, bit by bit: tokens hide small differences.
"""

import itertools

import pytest

from tests.exactness.conftest import NUM_TOKENS, Expected
from tests.exactness.driving import Answer, Driver, greedy, run_alone
from tidegate_server.engine.event_log import EventKind
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.model.runner import ModelRunner
from tidegate_server.settings import EngineSettings

pytestmark = pytest.mark.real_model


def assert_exact(
    answers: dict[str, Answer], expected: dict[str, Expected], alone: dict[str, Answer], names: list[str] | None = None
) -> None:
    for name in names or list(expected):
        assert tuple(answers[name].token_ids) == expected[name].token_ids, name
        assert answers[name].logprobs == alone[name].logprobs, f"{name}: log-probabilities differ in their bits"


def test_alone_each_request_gets_the_tokens_of_transformers(
    expected: dict[str, Expected], alone: dict[str, Answer]
) -> None:
    assert {name: tuple(answer.token_ids) for name, answer in alone.items()} == {
        name: answer.token_ids for name, answer in expected.items()
    }


def test_requests_that_join_and_leave_a_batch_get_the_same(
    runner: ModelRunner, expected: dict[str, Expected], alone: dict[str, Answer]
) -> None:
    driver = Driver(runner, EngineSettings(prefix_caching=False, max_num_batched_tokens=40))
    for i, (name, answer) in enumerate(expected.items()):
        driver.submit(name, answer.prompt, greedy(NUM_TOKENS))
        driver.submit(f"passer-by {i}", answer.prompt[:9], greedy(3 + 2 * i))
        for _ in range(6):
            driver.step()
    assert driver.engine.scheduler.num_running > 4, "the requests do not overlap"
    driver.run()
    assert_exact(driver.answers, expected, alone)
    firsts = [driver.engine.events.of(EventKind.FIRST_TOKEN, name)[0].step for name in expected]
    assert len(set(firsts)) == len(firsts), "the requests did not join one by one"


def test_preempted_requests_get_the_same(
    runner: ModelRunner, expected: dict[str, Expected], alone: dict[str, Answer]
) -> None:
    # Room for the longest request (25 blocks) and a little more; the eight need 59, the seven short ones 34.
    driver = Driver(runner, EngineSettings(prefix_caching=False, num_kv_blocks=28))
    for name, answer in expected.items():
        driver.submit(name, answer.prompt, greedy(NUM_TOKENS))
    driver.run()
    assert driver.engine.scheduler.num_preemptions > 0
    assert any(answer.num_preemptions > 0 for answer in driver.answers.values())
    assert_exact(driver.answers, expected, alone)


def test_requests_that_hit_the_prefix_cache_get_the_same(
    runner: ModelRunner, expected: dict[str, Expected], alone: dict[str, Answer]
) -> None:
    driver = Driver(runner, EngineSettings(num_kv_blocks=128))
    for name, answer in expected.items():
        driver.submit(f"warm {name}", answer.prompt + answer.token_ids[:20], greedy(1))
    driver.run()
    hits_before = driver.engine.scheduler.prefix_hit_tokens
    for name, answer in expected.items():
        driver.submit(name, answer.prompt, greedy(NUM_TOKENS))
    driver.run()
    assert driver.engine.scheduler.prefix_hit_tokens > hits_before
    long_enough = [name for name, answer in expected.items() if len(answer.prompt) > 16]
    assert all(driver.answers[name].num_cached_tokens > 0 for name in long_enough)
    assert_exact(driver.answers, expected, alone)


def test_a_small_pool_with_prefix_cache_and_small_chunks_changes_nothing(
    runner: ModelRunner, expected: dict[str, Expected], alone: dict[str, Answer]
) -> None:
    settings = EngineSettings(num_kv_blocks=72, block_size=8, max_num_batched_tokens=17)
    driver = Driver(runner, settings)
    for name, answer in expected.items():
        driver.submit(name, answer.prompt, greedy(NUM_TOKENS))
        driver.step()
    driver.run()
    assert driver.engine.scheduler.num_preemptions > 0
    assert_exact(driver.answers, expected, alone)


def test_seeded_draws_are_the_same_in_company(runner: ModelRunner, prompts: dict[str, tuple[int, ...]]) -> None:
    kinds = (
        SamplingParams(max_tokens=24, temperature=0.9, seed=7, logprobs=0),
        SamplingParams(max_tokens=24, temperature=1.3, top_p=0.9, seed=8, logprobs=2),
        SamplingParams(max_tokens=24, temperature=1.1, top_k=40, seed=9, logprobs=5),
    )
    sampling = dict(zip(prompts, itertools.cycle(kinds), strict=False))
    by_itself = {name: run_alone(runner, {name: prompts[name]}, sampling[name])[name] for name in prompts}
    driver = Driver(runner, EngineSettings(max_num_batched_tokens=64, num_kv_blocks=40))
    for name, prompt in prompts.items():
        driver.submit(name, prompt, sampling[name])
        driver.step()
    driver.run()
    for name in prompts:
        assert driver.answers[name].token_ids == by_itself[name].token_ids, name
        assert driver.answers[name].logprobs == by_itself[name].logprobs, name
