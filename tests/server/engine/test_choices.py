"""Several choices of one prompt: computed once, its blocks shared, each choice with an end of its own."""

from collections.abc import Sequence

import pytest

from tests.server.engine.counting_runner import CountingRunner
from tests.server.engine.driving import Driver, add_request, tokens_alone
from tidegate_server.engine.event_log import EventKind
from tidegate_server.engine.messages import AbortRequest, AddRequest, FinishReason
from tidegate_server.engine.sampling_params import SamplingParams


def choices(prompt: Sequence[int], count: int, max_tokens: int = 6) -> list[AddRequest]:
    return [
        add_request(
            f"choice-{index}",
            prompt,
            leader_id="choice-0" if index else "",
            sampling=SamplingParams(max_tokens=max_tokens, seed=index, choice=index),
        )
        for index in range(count)
    ]


def check_tokens(driver: Driver, commands: list[AddRequest]) -> None:
    for command in commands:
        assert driver.tokens(command.request_id) == tokens_alone(command, CountingRunner(mixes=True))


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("length", [1, 4, 5, 8, 10])
def test_a_prompt_is_computed_once_for_all_its_choices(length: int, prefix_caching: bool) -> None:
    driver = Driver(CountingRunner(mixes=True), prefix_caching=prefix_caching)
    commands = choices(range(length), count=4)
    driver.add(*commands)
    driver.run()
    check_tokens(driver, commands)
    # The prompt, then for each other choice its last token, whose logits it draws from; then a token a choice and step.
    num_computed = sum(share.num_new_tokens for batch in driver.batches for share in batch.scheduled)
    assert num_computed == length + 3 + 4 * 5


def test_only_the_last_partial_block_is_copied_and_by_all_but_the_last_who_writes() -> None:
    driver = Driver(CountingRunner(mixes=True))
    driver.add(*choices(range(10), count=4))
    driver.run()
    copies = [copy for batch in driver.batches for copy in batch.copies.within]
    assert len(copies) == 3
    assert len({copy.source for copy in copies}) == 1


def test_a_prompt_that_ends_with_its_block_needs_no_copy() -> None:
    driver = Driver(CountingRunner(mixes=True))
    driver.add(*choices(range(9), count=3))
    driver.run()
    assert [copy for batch in driver.batches for copy in batch.copies.within] == []


def test_choices_hold_one_prompts_blocks_together() -> None:
    driver = Driver(CountingRunner(mixes=True))
    driver.add(*choices(range(33), count=4, max_tokens=9))
    driver.step()
    driver.step()
    pool = driver.engine.scheduler.pool
    assert driver.engine.scheduler.num_running == 4
    assert pool.num_live == 8 + 4  # of 33 tokens eight full blocks, and one more for each choice
    driver.run()
    assert pool.num_live == 0


def test_a_choice_may_join_while_its_leader_decodes() -> None:
    driver = Driver(CountingRunner(mixes=True))
    first, second = choices(range(10), count=2)
    driver.add(first)
    for _ in range(3):
        driver.step()
    driver.add(second)
    driver.step()
    joined = driver.batches[-1].scheduled[-1]
    assert (joined.request_id, joined.num_new_tokens) == ("choice-1", 1)
    driver.run()
    check_tokens(driver, [first, second])


@pytest.mark.parametrize("num_steps", [0, 1, 2, 4])
def test_the_others_go_on_when_their_leader_is_aborted(num_steps: int) -> None:
    driver = Driver(CountingRunner(mixes=True), max_num_batched_tokens=6)
    commands = choices(range(10), count=3)
    driver.add(*commands)
    for _ in range(num_steps):
        driver.step()
    driver.engine.apply(AbortRequest(request_id="choice-0"))
    driver.run()
    assert driver.last("choice-0").finish_reason is FinishReason.ABORT
    check_tokens(driver, commands[1:])
    assert driver.engine.scheduler.pool.num_live == 0


def test_aborting_all_choices_frees_everything() -> None:
    driver = Driver(CountingRunner(mixes=True), max_num_batched_tokens=6)
    driver.add(*choices(range(10), count=3))
    driver.step()
    for index in range(3):
        driver.engine.apply(AbortRequest(request_id=f"choice-{index}"))
    driver.run()
    scheduler = driver.engine.scheduler
    assert (scheduler.pool.num_live, scheduler.num_waiting, scheduler.waiting_tokens) == (0, 0, 0)


def test_a_choice_is_not_starved_by_requests_that_came_after_its_group() -> None:
    driver = Driver(CountingRunner(mixes=True), max_num_seqs=2)
    commands = choices(range(10), count=4)
    driver.add(*commands, *(add_request(f"later-{n}", [n]) for n in range(3)))
    driver.run()
    order = [event.request_id for event in driver.engine.events.of(EventKind.ADMITTED)]
    # One of the later ones takes the seat that is free while the prompt is computed; then it is the choices' turn.
    assert order[:5] == ["choice-0", "later-0", "choice-1", "choice-2", "choice-3"]
    check_tokens(driver, commands)


def test_choices_survive_a_pool_that_is_too_small_for_all() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=7, mixes=True))
    commands = choices(range(10), count=4, max_tokens=14)
    driver.add(*commands)
    driver.run()
    check_tokens(driver, commands)
    assert driver.engine.scheduler.num_preemptions > 0


def test_a_leader_with_another_prompt_or_salt_is_no_leader() -> None:
    driver = Driver(CountingRunner(mixes=True))
    sampling = SamplingParams(max_tokens=4, seed=1)
    commands = [
        add_request("a", range(10), sampling=sampling),
        add_request("b", range(1, 11), sampling=sampling, leader_id="a"),
        add_request("c", range(10), sampling=sampling, leader_id="a", cache_salt="other"),
        add_request("d", range(10), sampling=sampling, leader_id="nobody"),
    ]
    driver.add(*commands)
    driver.run()
    check_tokens(driver, commands)
    assert [driver.last(name).num_cached_tokens for name in "abc"] == [0, 0, 0]
