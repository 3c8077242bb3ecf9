"""The scheduler's rules, one by one, on an engine stepped by hand."""

import re

import pytest

from tests.server.engine.counting_runner import CountingRunner
from tests.server.engine.driving import Driver, add_request, tokens_alone
from tidegate_server.engine.event_log import EventKind
from tidegate_server.engine.messages import AbortRequest, FinishReason
from tidegate_server.engine.sampling_params import SamplingParams


def shares(driver: Driver, step: int = -1) -> dict[str, int]:
    """Tokens computed for each request in one step, in the batch's order."""
    return {share.request_id: share.num_new_tokens for share in driver.batches[step].scheduled}


def test_a_prompt_is_computed_and_then_one_token_a_step() -> None:
    driver = Driver()
    driver.add(add_request("a", [1, 2, 3], max_tokens=3))
    driver.run()
    assert driver.tokens("a") == [4, 5, 6]
    assert [shares(driver, step) for step in range(3)] == [{"a": 3}, {"a": 1}, {"a": 1}]
    assert driver.last("a").finish_reason is FinishReason.LENGTH


def test_running_requests_get_one_token_each_before_prompts_get_the_rest() -> None:
    driver = Driver(max_num_batched_tokens=8)
    driver.add(add_request("old", range(4), max_tokens=9), add_request("older", range(4), max_tokens=9))
    driver.step()
    driver.add(add_request("long", range(100, 120)), add_request("longer", range(200, 220)))
    driver.step()
    assert shares(driver) == {"old": 1, "older": 1, "long": 6}
    driver.run()


def test_left_over_budget_reaches_several_prompts_in_one_step() -> None:
    driver = Driver(max_num_batched_tokens=10)
    driver.add(*(add_request(name, range(start, start + 4)) for name, start in (("a", 0), ("b", 100), ("c", 200))))
    driver.step()
    assert shares(driver) == {"a": 4, "b": 4, "c": 2}
    driver.step()
    assert shares(driver) == {"a": 1, "b": 1, "c": 2}


def test_a_chunked_prompt_draws_only_at_its_end_and_gives_the_same_tokens() -> None:
    driver = Driver(CountingRunner(mixes=True), max_num_batched_tokens=3)
    command = add_request("a", range(10), sampling=SamplingParams(max_tokens=5, seed=1))
    driver.add(command)
    driver.run()
    drawn = [share.sampling is not None for batch in driver.batches for share in batch.scheduled]
    assert drawn[:4] == [False, False, False, True]
    assert driver.tokens("a") == tokens_alone(command, CountingRunner(mixes=True))


def test_a_request_that_arrives_while_others_decode_gets_its_first_token_before_they_end() -> None:
    driver = Driver(max_num_batched_tokens=8)
    driver.add(add_request("first", range(5), max_tokens=40), add_request("second", range(50, 57), max_tokens=40))
    for _ in range(5):
        driver.step()
    driver.add(add_request("late", range(100, 130), max_tokens=4))
    driver.run()
    events = driver.engine.events
    (first_token,) = events.of(EventKind.FIRST_TOKEN, "late")
    for name in ("first", "second"):
        (finished,) = events.of(EventKind.FINISHED, name)
        (started,) = events.of(EventKind.FIRST_TOKEN, name)
        assert started.step < first_token.step < finished.step
        assert started.at_s < first_token.at_s < finished.at_s


def test_lower_numbers_are_served_first_and_arrival_decides_among_equals() -> None:
    driver = Driver(max_num_seqs=1)
    driver.add(
        add_request("late-class", [1], priority=5),
        add_request("first", [1], priority=0),
        add_request("second", [1], priority=0),
    )
    driver.run()
    order = [event.request_id for event in driver.engine.events.of(EventKind.ADMITTED)]
    assert order == ["first", "second", "late-class"]


def test_never_more_requests_run_than_a_step_has_tokens_for() -> None:
    driver = Driver(max_num_seqs=64, max_num_batched_tokens=2)
    driver.add(*(add_request(str(number), [number * 10], max_tokens=8) for number in range(4)))
    for _ in range(4):
        driver.step()
    assert driver.engine.scheduler.num_running == 2
    driver.run()


# Preemption. The pools hold blocks of 4 tokens.


def test_the_last_in_order_is_preempted_and_keeps_its_output() -> None:
    runner = CountingRunner(num_kv_blocks=6, mixes=True)
    driver = Driver(runner)
    commands = [
        add_request("old", range(7), sampling=SamplingParams(max_tokens=15, seed=1)),
        add_request("new", range(50, 57), sampling=SamplingParams(max_tokens=15, seed=2)),
    ]
    driver.add(*commands)
    driver.run()
    assert [event.request_id for event in driver.engine.events.of(EventKind.PREEMPTED)] == ["new"]
    assert driver.last("new").num_preemptions == 1
    for command in commands:
        assert driver.tokens(command.request_id) == tokens_alone(command, CountingRunner(mixes=True))
    # It came back with its whole output known, as one prefill.
    (_, back) = driver.engine.events.of(EventKind.ADMITTED, "new")
    assert back.num_tokens > 7


def test_a_preemption_tells_who_needed_the_block_and_why_this_one() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=6))
    driver.add(add_request("old", range(7), max_tokens=15), add_request("new", range(50, 57), max_tokens=15))
    driver.run()
    (event,) = driver.engine.events.of(EventKind.PREEMPTED)
    assert re.fullmatch(
        r"old \(priority 0\) needs 1 blocks and none is free; of 1 behind it this one \(priority 0\) "
        r"costs \d+\.\d ms by (recompute|tail)",
        event.reason,
    )


def test_the_lower_priority_is_preempted_even_if_it_came_first() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=6))
    driver.add(
        add_request("batch", range(7), max_tokens=15, priority=9),
        add_request("chat", range(50, 57), max_tokens=15, priority=0),
    )
    driver.run()
    assert {event.request_id for event in driver.engine.events.of(EventKind.PREEMPTED)} == {"batch"}


def test_a_request_never_takes_from_those_before_it_but_waits_in_place() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=8), max_num_batched_tokens=3)
    driver.add(add_request("later", range(50, 53), max_tokens=12, priority=1))
    driver.step()
    driver.add(add_request("before", range(20), max_tokens=1, priority=0))  # holds six blocks over ten steps
    driver.run()
    events = driver.engine.events
    assert events.of(EventKind.PREEMPTED) == []
    (stalled,) = events.of(EventKind.STALLED)
    (finished,) = events.of(EventKind.FINISHED, "before")
    assert stalled.request_id == "later"
    assert stalled.step < finished.step
    assert driver.tokens("later") == list(range(53, 65))


def test_nothing_new_of_equal_or_lower_priority_overtakes_a_preempted_request() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=6), prefix_caching=False)
    driver.add(add_request("old", range(7), max_tokens=15), add_request("new", range(50, 57), max_tokens=15))
    while not driver.engine.events.of(EventKind.PREEMPTED):
        driver.step()
    driver.add(
        add_request("equal", [1]), add_request("lower", [1], priority=3), add_request("higher", [1], priority=-1)
    )
    driver.run()
    order = [event.request_id for event in driver.engine.events.of(EventKind.ADMITTED)]
    assert order == ["old", "new", "higher", "new", "equal", "lower"]


def test_a_preempted_request_returns_only_when_its_working_set_fits() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=6), prefix_caching=False)
    driver.add(add_request("old", range(7), max_tokens=15), add_request("new", range(50, 57), max_tokens=15))
    driver.run()
    (finished,) = driver.engine.events.of(EventKind.FINISHED, "old")
    (_, back) = driver.engine.events.of(EventKind.ADMITTED, "new")
    assert back.step > finished.step


def test_one_request_may_use_the_whole_pool_and_ends_where_it_ends() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=4, max_model_len=1000))
    driver.add(add_request("a", range(5), max_tokens=500), add_request("b", range(50, 55), max_tokens=500))
    driver.run()
    assert len(driver.tokens("a")) == len(driver.tokens("b")) == 16 - 5
    assert driver.last("a").finish_reason is driver.last("b").finish_reason is FinishReason.LENGTH


# The door.


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        pytest.param(range(256), 4, "256 tokens .* context holds 256 tokens", id="longer than the context"),
        pytest.param(range(64), 4, "64 tokens .* KV cache holds 64 tokens", id="larger than the pool"),
        pytest.param([], 4, "no tokens", id="empty"),
        pytest.param([1, 1000], 4, "token id 1000; this model's are 0 to 999", id="an id past the vocabulary"),
        pytest.param([-3], 4, "token id -3", id="a negative id"),
        pytest.param([1], 0, "max_tokens is 0", id="nothing asked for"),
    ],
)
def test_what_can_never_run_is_refused_with_the_numbers(prompt: list[int], max_tokens: int, message: str) -> None:
    num_kv_blocks = 16 if len(prompt) == 64 else 100
    driver = Driver(CountingRunner(num_kv_blocks=num_kv_blocks))
    driver.add(add_request("a", prompt, max_tokens))
    driver.run()
    output = driver.last("a")
    assert (output.finish_reason, output.refused) == (FinishReason.ERROR, True)
    assert output.error is not None
    assert re.search(message, output.error)
    assert driver.batches == []
    assert driver.engine.scheduler.num_requests == 0


def test_the_longest_prompt_that_leaves_one_token_runs() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=16))
    driver.add(add_request("a", range(63), max_tokens=9))
    driver.run()
    assert driver.tokens("a") == [63]


def test_an_id_in_use_is_refused_and_its_owner_unharmed() -> None:
    driver = Driver()
    driver.add(add_request("a", [1]), add_request("a", [50]))
    driver.run()
    assert driver.tokens("a") == [2, 3, 4, 5]
    assert [output.refused for output in driver.outputs["a"]].count(True) == 1


# Ends.


def test_an_end_token_ends_and_is_the_last_token_given() -> None:
    driver = Driver(CountingRunner(eos_token_ids=(5,)))
    driver.add(add_request("a", [1, 2], max_tokens=50))
    driver.run()
    assert driver.tokens("a") == [3, 4, 5]
    assert driver.last("a").finish_reason is FinishReason.STOP


def test_ignore_eos_goes_on_but_own_stop_tokens_still_end() -> None:
    driver = Driver(CountingRunner(eos_token_ids=(5,)))
    sampling = SamplingParams(max_tokens=50, ignore_eos=True, stop_token_ids=(8,))
    driver.add(add_request("a", [1, 2], sampling=sampling))
    driver.run()
    assert driver.tokens("a") == [3, 4, 5, 6, 7, 8]
    assert driver.last("a").finish_reason is FinishReason.STOP


def test_min_tokens_holds_end_tokens_back() -> None:
    driver = Driver(CountingRunner(eos_token_ids=(4, 7)))
    driver.add(add_request("a", [1, 2], sampling=SamplingParams(max_tokens=50, min_tokens=3)))
    driver.run()
    assert driver.tokens("a") == [3, 5, 6, 7]


def test_the_context_ends_a_request() -> None:
    driver = Driver(CountingRunner(max_model_len=10))
    driver.add(add_request("a", range(6), max_tokens=50))
    driver.run()
    assert driver.tokens("a") == [6, 7, 8, 9]
    assert driver.last("a").finish_reason is FinishReason.LENGTH


# Abort.


def test_abort_is_idempotent_and_order_free() -> None:
    driver = Driver()
    driver.engine.apply(AbortRequest(request_id="a"))  # before the request
    driver.add(add_request("a", [1]), add_request("b", [50]))
    driver.step()
    for _ in range(2):
        driver.engine.apply(AbortRequest(request_id="a"))
    driver.run()
    driver.engine.apply(AbortRequest(request_id="b"))  # after its end
    driver.run()
    assert [output.finish_reason for output in driver.outputs["a"]] == [None, FinishReason.ABORT]
    assert driver.tokens("b") == [51, 52, 53, 54]


def test_an_aborted_waiting_request_leaves_without_having_run() -> None:
    driver = Driver(max_num_seqs=1)
    driver.add(add_request("a", [1]), add_request("b", [50, 51]))
    driver.step()
    assert driver.engine.scheduler.waiting_tokens == 2
    driver.engine.apply(AbortRequest(request_id="b"))
    assert driver.engine.scheduler.waiting_tokens == 0
    driver.run()
    assert driver.tokens("b") == []


# Results that come back too late.


def test_a_result_of_an_aborted_request_is_dropped_once_and_its_blocks_wait_for_the_step() -> None:
    driver = Driver()
    scheduler = driver.engine.scheduler
    scheduler.add(add_request("a", range(6)), now=0.0)
    batch = scheduler.schedule(0.0)
    sampled = driver.runner.run(batch)
    scheduler.abort("a", 0.0)
    assert (scheduler.pool.num_pending, scheduler.pool.num_live) == (2, 0)
    assert scheduler.update(batch, sampled, 0.0) == ()
    assert scheduler.num_stale_results == 1
    assert (scheduler.pool.num_pending, scheduler.pool.num_free) == (0, scheduler.pool.num_total)


def test_a_result_of_an_earlier_request_with_the_same_id_is_dropped() -> None:
    driver = Driver(CountingRunner(mixes=True))
    scheduler = driver.engine.scheduler
    scheduler.add(add_request("a", range(6)), now=0.0)
    batch = scheduler.schedule(0.0)
    scheduler.abort("a", 0.0)
    scheduler.add(add_request("a", range(50, 53)), now=0.0)
    second = scheduler.schedule(0.0)
    assert scheduler.update(batch, driver.runner.run(batch), 0.0) == ()
    (output,) = scheduler.update(second, driver.runner.run(second), 0.0)
    assert output.token_ids == tuple(token.token_id for token in driver.runner.run(second))


def test_a_request_preempted_in_flight_loses_that_result_and_computes_it_again() -> None:
    driver = Driver()
    scheduler = driver.engine.scheduler
    scheduler.add(add_request("a", [1, 2, 3], max_tokens=2), now=0.0)
    batch = scheduler.schedule(0.0)
    scheduler.preempt("a", 0.0, "told to")
    scheduler.preempt("a", 0.0, "told again")  # it holds no blocks any more
    again = scheduler.schedule(0.0)
    assert again.preempted == ("a",)
    assert scheduler.update(batch, driver.runner.run(batch), 0.0) == ()
    (output,) = scheduler.update(again, driver.runner.run(again), 0.0)
    assert (output.token_ids, output.num_preemptions) == ((4,), 1)


# The prefix cache.


def test_a_known_prefix_is_not_computed_again() -> None:
    driver = Driver()
    driver.add(add_request("a", range(10), max_tokens=1))
    driver.run()
    driver.add(add_request("b", [*range(9), 99], max_tokens=1))
    driver.run()
    assert shares(driver) == {"b": 2}
    assert driver.last("b").num_cached_tokens == 8
    scheduler = driver.engine.scheduler
    assert (scheduler.prefix_miss_tokens, scheduler.prefix_hit_tokens) == (12, 8)


@pytest.mark.parametrize("length", [4, 8, 9])
def test_a_hit_leaves_at_least_one_token_to_compute(length: int) -> None:
    driver = Driver(CountingRunner(mixes=True))
    for name in ("a", "b"):
        driver.add(add_request(name, range(length), sampling=SamplingParams(max_tokens=3, seed=0)))
        driver.run()
    assert driver.last("b").num_cached_tokens == (length - 1) // 4 * 4
    assert driver.tokens("a") == driver.tokens("b")


def test_output_is_found_again_as_the_beginning_of_the_next_turn() -> None:
    driver = Driver()
    driver.add(add_request("a", range(6), max_tokens=7))
    driver.run()
    driver.add(add_request("b", range(14), max_tokens=1))
    driver.run()
    assert driver.last("b").num_cached_tokens == 12


def test_requests_with_different_salts_share_nothing() -> None:
    driver = Driver()
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        driver.add(add_request(name, range(10), cache_salt=salt))
        driver.run()
    assert [driver.last(name).num_cached_tokens for name in "abc"] == [0, 0, 8]


def test_without_prefix_caching_nothing_is_found_or_kept() -> None:
    driver = Driver(prefix_caching=False)
    for name in ("a", "b"):
        driver.add(add_request(name, range(10)))
        driver.run()
    assert driver.last("b").num_cached_tokens == 0
    assert driver.engine.scheduler.pool.num_cached == 0


def test_finding_ones_own_blocks_after_a_preemption_counts_as_no_hit() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=7))
    driver.add(add_request("old", range(8), max_tokens=15), add_request("new", range(50, 58), max_tokens=12))
    driver.run()
    scheduler = driver.engine.scheduler
    assert scheduler.num_preemptions >= 1
    assert (scheduler.prefix_miss_tokens, scheduler.prefix_hit_tokens) == (16, 0)


# Seeds.


def test_a_request_without_a_seed_gets_one_from_the_engines_seed_and_its_number() -> None:
    def drawn(root_seed: int) -> list[int]:
        driver = Driver(seed=root_seed)
        driver.add(add_request("a", [1]), add_request("b", [1]))
        driver.step()
        return [share.seed for share in driver.batches[0].scheduled]

    assert drawn(0) == drawn(0)
    assert len({*drawn(0), *drawn(1)}) == 4


def test_a_seed_of_ones_own_is_used_as_it_is() -> None:
    driver = Driver()
    driver.add(add_request("a", [1], sampling=SamplingParams(max_tokens=1, seed=42)))
    driver.step()
    assert driver.batches[0].scheduled[0].seed == 42


def test_queue_time_is_told_with_the_first_output_only() -> None:
    driver = Driver()
    driver.add(add_request("a", [1], max_tokens=3, arrival_s=90.0))
    driver.run()
    first, *others = driver.outputs["a"]
    assert first.queue_time_s == pytest.approx(10.0, abs=0.1)
    assert [output.queue_time_s for output in others] == [None, None]


def test_log_probabilities_pass_through() -> None:
    driver = Driver()
    driver.add(add_request("a", [1], sampling=SamplingParams(max_tokens=1, logprobs=2)))
    driver.run()
    assert driver.last("a").logprobs == (-0.5,)
    assert driver.last("a").top_logprobs == (((2, -0.5), (2, -0.5)),)
