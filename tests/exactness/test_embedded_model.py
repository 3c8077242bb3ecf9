"""The embedded model gives transformers' greedy tokens, alone and under everything that a server does to a request.

Log-probabilities are compared with our own of the request run alone, bit by bit: tokens hide small differences.
"""

import itertools
from collections.abc import Callable

import pytest

from tests.exactness.conftest import NUM_TOKENS, Expected
from tests.exactness.driving import Answer, Driver, greedy, run_alone
from tests.exactness.machine import attention_keeps_bits
from tidegate_server.engine.event_log import EventKind
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.model.runner import ModelRunner
from tidegate_server.settings import EngineSettings, SchedulerKind

pytestmark = pytest.mark.real_model

AssertExact = Callable[[dict[str, Answer]], None]


@pytest.fixture(scope="session")
def same_bits(runner: ModelRunner) -> bool:
    """Always with the CPU kernels; with plain torch where the machine's matrix library allows."""
    return runner.kernels != "torch" or attention_keeps_bits(runner.config)


@pytest.fixture(scope="session")
def assert_exact(expected: dict[str, Expected], alone: dict[str, Answer], same_bits: bool) -> AssertExact:
    """Checks what eight disturbed requests were given."""

    def check(answers: dict[str, Answer]) -> None:
        for name, answer in expected.items():
            assert tuple(answers[name].token_ids) == answer.token_ids, name
            assert_same_logprobs(answers[name], alone[name], same_bits)

    return check


def assert_same_logprobs(answer: Answer, alone: Answer, same_bits: bool) -> None:
    if same_bits:
        assert answer.logprobs == alone.logprobs, "log-probabilities differ in their bits"
    else:
        assert answer.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_this_machine_keeps_bits(same_bits: bool) -> None:
    if not same_bits:
        pytest.skip("this machine's matrix library sums differently for few rows; bits were not compared")


def test_alone_each_request_gets_the_tokens_of_transformers(
    expected: dict[str, Expected], alone: dict[str, Answer]
) -> None:
    assert {name: tuple(answer.token_ids) for name, answer in alone.items()} == {
        name: answer.token_ids for name, answer in expected.items()
    }


def test_requests_that_join_and_leave_a_batch_get_the_same(
    runner: ModelRunner, expected: dict[str, Expected], assert_exact: AssertExact
) -> None:
    driver = Driver(runner, EngineSettings(prefix_caching=False, max_num_batched_tokens=40))
    for i, (name, answer) in enumerate(expected.items()):
        driver.submit(name, answer.prompt, greedy(NUM_TOKENS))
        driver.submit(f"passer-by {i}", answer.prompt[:9], greedy(3 + 2 * i))
        for _ in range(6):
            driver.step()
    assert driver.engine.scheduler.num_running > 4, "the requests do not overlap"
    driver.run()
    assert_exact(driver.answers)
    firsts = [driver.engine.events.of(EventKind.FIRST_TOKEN, name)[0].step for name in expected]
    assert len(set(firsts)) == len(firsts), "the requests did not join one by one"


def test_preempted_requests_get_the_same(
    runner: ModelRunner, expected: dict[str, Expected], assert_exact: AssertExact
) -> None:
    # Room for the longest request (25 blocks) and a little more; the eight need 59, the seven short ones 34.
    driver = Driver(runner, EngineSettings(prefix_caching=False, num_kv_blocks=28))
    for name, answer in expected.items():
        driver.submit(name, answer.prompt, greedy(NUM_TOKENS))
    driver.run()
    assert driver.engine.scheduler.num_preemptions > 0
    assert any(answer.num_preemptions > 0 for answer in driver.answers.values())
    assert_exact(driver.answers)


def test_requests_that_hit_the_prefix_cache_get_the_same(
    runner: ModelRunner, expected: dict[str, Expected], assert_exact: AssertExact
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
    assert_exact(driver.answers)


def test_a_small_pool_with_prefix_cache_and_small_chunks_changes_nothing(
    runner: ModelRunner, expected: dict[str, Expected], assert_exact: AssertExact
) -> None:
    settings = EngineSettings(num_kv_blocks=72, block_size=8, max_num_batched_tokens=17)
    driver = Driver(runner, settings)
    for name, answer in expected.items():
        driver.submit(name, answer.prompt, greedy(NUM_TOKENS))
        driver.step()
    driver.run()
    assert driver.engine.scheduler.num_preemptions > 0
    assert_exact(driver.answers)


def test_padding_and_rows_that_finished_before_change_nothing(
    runner: ModelRunner, expected: dict[str, Expected], assert_exact: AssertExact
) -> None:
    settings = EngineSettings(scheduler=SchedulerKind.STATIC, max_num_seqs=5, max_num_batched_tokens=256)
    driver = Driver(runner, settings)
    for i, (name, answer) in enumerate(expected.items()):
        driver.submit(name, answer.prompt, greedy(NUM_TOKENS))
        if i % 4 == 0:
            driver.submit(f"early {i}", answer.prompt[:9], greedy(3))
    driver.run()
    assert_exact(driver.answers)


def test_seeded_draws_are_the_same_in_company(
    runner: ModelRunner, prompts: dict[str, tuple[int, ...]], same_bits: bool
) -> None:
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
        assert_same_logprobs(driver.answers[name], by_itself[name], same_bits)
