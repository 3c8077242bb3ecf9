"""What went wrong in other engines, as their trackers tell it, and does not here. The pools hold blocks of 4 tokens.

More of it stands beside the rule that prevents it: in test_memory_pressure (swap space runs out; two that wait for
each other's blocks; an equal priority that takes a seat), test_scheduler (a token given twice after a preemption in
flight; a preempted request that is overtaken; an id that is used again), test_choices (one choice runs and the others
starve) and test_prefix_cache (hashes that a client computes; an adapter that is named like a salt).
"""

import pytest

from tests.server.engine.counting_runner import CountingRunner
from tests.server.engine.driving import Driver, add_request, tokens_alone
from tidegate_server.engine.batch import Batch
from tidegate_server.engine.core import scheduler_config
from tidegate_server.engine.event_log import EventKind
from tidegate_server.engine.messages import AbortRequest, AddRequest, FinishReason
from tidegate_server.engine.preemption_kind import PreemptionKind
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.engine.scheduler import Scheduler
from tidegate_server.settings import EngineSettings, PreemptionMode, PreemptionPolicy


def many(count: int) -> list[AddRequest]:
    """Requests of equal priority, whose prompts have nothing in common."""
    return [
        add_request(
            f"r{number}", range(number * 20, number * 20 + 7), sampling=SamplingParams(max_tokens=15, seed=number)
        )
        for number in range(count)
    ]


def crowded(mode: PreemptionMode = PreemptionMode.AUTO, **settings: object) -> Driver:
    """An engine with memory for two of the requests of `many` at their longest."""
    runner = CountingRunner(num_kv_blocks=12, num_host_blocks=12, vocab_size=900, mixes=True)
    return Driver(runner, preemption_mode=mode, **settings)


def check_alone(driver: Driver, commands: list[AddRequest]) -> None:
    for command in commands:
        assert driver.tokens(command.request_id) == tokens_alone(command, CountingRunner(vocab_size=900, mixes=True))


def scheduled(batch: Batch) -> set[str]:
    return {share.request_id for share in batch.scheduled}


# Preempting.


@pytest.mark.parametrize("policy", PreemptionPolicy)
@pytest.mark.parametrize("mode", PreemptionMode)
def test_a_request_that_came_back_draws_tokens_before_it_is_preempted_again(
    mode: PreemptionMode, policy: PreemptionPolicy
) -> None:
    driver = crowded(mode, preemption_policy=policy)
    commands = many(6)
    driver.add(*commands)
    driver.run()
    events = driver.engine.events
    assert events.of(EventKind.PREEMPTED)
    for command in commands:
        preempted = [event.num_tokens for event in events.of(EventKind.PREEMPTED, command.request_id)]
        assert preempted == sorted(set(preempted)), "preempted twice with the same number of tokens"
    check_alone(driver, commands)


@pytest.mark.parametrize("mode", PreemptionMode)
def test_a_step_that_preempts_computes_a_token_for_everybody_who_runs_on(mode: PreemptionMode) -> None:
    driver = crowded(mode, prefix_caching=False)
    driver.add(*many(3))
    while not driver.engine.events.of(EventKind.PREEMPTED):
        before = scheduled(driver.batches[-1]) if driver.batches else set()
        driver.step()
    batch = driver.batches[-1]
    assert batch.preempted
    assert scheduled(batch) == before - set(batch.preempted)
    if mode is PreemptionMode.SWAP:
        assert batch.copies.swap_out
    driver.run()


@pytest.mark.parametrize("policy", PreemptionPolicy)
def test_equal_requests_do_not_take_blocks_from_each_other_in_turn(policy: PreemptionPolicy) -> None:
    driver = crowded(preemption_policy=policy)
    driver.add(*many(3))
    driver.run()
    preempted = driver.engine.events.of(EventKind.PREEMPTED)
    assert preempted
    for event in preempted:
        taker = event.reason.split()[0]
        assert event.request_id is not None
        assert taker < event.request_id, "a request takes from those that came after it only"


def test_nobody_is_stopped_while_somebody_who_is_stopped_anyway_has_blocks_to_give() -> None:
    driver = crowded(PreemptionMode.TAIL, prefix_caching=False)
    driver.add(*(add_request(f"r{n}", range(n * 40, n * 40 + length), 15) for n, length in enumerate((3, 4, 4, 8))))
    stopped: set[str | None] = set()
    while driver.engine.has_work:
        driver.step()
        assert isinstance(driver.engine.scheduler, Scheduler)
        before, stopped = stopped, {event.request_id for event in driver.engine.events.of(EventKind.PREEMPTED)}
        if stopped > before:
            holders = {request.request_id for request in driver.engine.scheduler._roster.waiting.holders}
            assert holders <= stopped - before
    assert stopped


def test_nobody_loses_a_seat_to_a_request_that_finds_no_blocks() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=10), max_num_seqs=2)
    driver.add(add_request("big", range(24), max_tokens=8), add_request("low", [50, 51], max_tokens=9, priority=5))
    driver.step()
    driver.add(add_request("high", range(100, 130), max_tokens=2))
    driver.run()
    (admitted,) = driver.engine.events.of(EventKind.ADMITTED, "high")
    for event in driver.engine.events.of(EventKind.PREEMPTED, "low"):
        assert event.step + 1 >= admitted.step


# The queue.


def test_a_prompt_larger_than_the_pool_holds_up_nobody() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=4, max_model_len=1000))
    driver.add(add_request("huge", range(100)), add_request("small", [1]))
    driver.run()
    assert driver.last("huge").refused
    assert driver.tokens("small") == [2, 3, 4, 5]


def test_a_prompt_of_low_priority_does_not_hold_up_one_of_high_priority_until_it_is_computed() -> None:
    driver = Driver(max_num_batched_tokens=8)
    driver.add(add_request("long", range(200), priority=5))
    driver.step()
    driver.add(add_request("urgent", range(300, 303)))
    driver.step()
    assert driver.tokens("urgent") == [303]
    driver.run()


@pytest.mark.parametrize("length", [13, 14, 15])
def test_choices_whose_prompt_fills_the_pool_do_not_wait_for_each_other(length: int) -> None:
    driver = Driver(CountingRunner(num_kv_blocks=4, vocab_size=900, mixes=True))
    commands = [
        add_request(
            f"choice-{index}",
            range(length),
            leader_id="choice-0" if index else "",
            sampling=SamplingParams(max_tokens=1, seed=index, choice=index),
        )
        for index in range(4)
    ]
    driver.add(*commands)
    driver.run(max_steps=100)
    check_alone(driver, commands)


def test_a_queue_that_waited_too_long_takes_nothing_from_those_who_came_before() -> None:
    driver = Driver(max_num_seqs=2, max_queue_age_s=0.01)  # a look at the clock is a millisecond
    driver.add(*(add_request(f"r{number}", [number * 30], max_tokens=20) for number in range(6)))
    driver.run()
    assert driver.engine.events.of(EventKind.AGED)
    assert driver.engine.scheduler.num_preemptions == 0
    order = [event.request_id for event in driver.engine.events.of(EventKind.FINISHED)]
    assert order == sorted(order, key=str)


# Clients that leave.


def test_a_client_that_leaves_while_its_prompt_is_computed_in_parts_leaves_no_blocks() -> None:
    driver = Driver(max_num_batched_tokens=4, prefix_caching=False)
    driver.add(add_request("a", range(40)))
    driver.step()
    driver.step()
    pool = driver.engine.scheduler.pool
    assert pool.num_live == 11
    driver.engine.apply(AbortRequest(request_id="a"))
    assert (pool.num_live, pool.num_pending, pool.num_free) == (0, 0, pool.num_total)
    driver.run()


@pytest.mark.parametrize("kind", PreemptionKind)
def test_a_request_that_is_aborted_on_its_way_between_two_lists_is_in_neither(kind: PreemptionKind) -> None:
    driver = crowded()
    scheduler = driver.engine.scheduler
    driver.add(*many(2))
    driver.step()
    scheduler.preempt("r1", 0.0, "told to", kind)
    driver.engine.apply(AbortRequest(request_id="r1"))
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.waiting_tokens) == (1, 0, 0)
    driver.run()
    assert [output.finish_reason for output in driver.outputs["r1"]] == [None, FinishReason.ABORT]
    assert scheduler.host is not None
    assert (scheduler.pool.num_live, scheduler.host.pool.num_live) == (0, 0)


# The prefix cache.


def test_a_block_that_was_found_is_not_evicted_to_make_room_for_the_rest() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=6, vocab_size=900, mixes=True))
    sampling = SamplingParams(max_tokens=2, seed=1)
    # What `first` left is the oldest in the cache, and `again` needs every block there is.
    commands = [
        add_request("first", range(9), sampling=sampling),
        add_request("other", range(50, 62), sampling=sampling),
        add_request("again", range(22), sampling=sampling),
    ]
    for command in commands:
        driver.add(command)
        driver.run()
    assert driver.last("again").num_cached_tokens == 8
    check_alone(driver, commands)


def test_nothing_is_loaded_into_a_block_that_a_step_still_reads() -> None:
    runner = CountingRunner(num_kv_blocks=8, num_host_blocks=8, mixes=True)
    scheduler = Scheduler(scheduler_config(runner, EngineSettings(prefix_caching=False), "rev"))
    for command in many(2):
        scheduler.add(command, 0.0)
    batch = scheduler.schedule(0.0)
    scheduler.update(batch, runner.run(batch), 0.0)
    scheduler.preempt("r1", 0.0, "told to", PreemptionKind.SWAP)
    scheduler.change_priority("r1", 1, 0.0)
    scheduler.add(add_request("reader", range(100, 113)), 0.0)
    reading = scheduler.schedule(0.0)
    assert scheduled(reading) == {"r0", "reader"}
    scheduler.abort("reader", 0.0)
    loading = scheduler.schedule(0.0)
    read = {block for share in reading.scheduled for block in share.block_table}
    assert read.isdisjoint(copy.target for copy in loading.copies.swap_in)
    assert scheduler.pool.num_pending == 4


def test_a_hit_counts_once_however_often_its_request_is_turned_away() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=8), max_num_batched_tokens=64)
    driver.add(add_request("first", range(9), max_tokens=1))
    driver.run()
    driver.add(add_request("busy", range(50, 62), max_tokens=8))
    driver.step()
    driver.add(add_request("again", range(20), max_tokens=1))
    for _ in range(4):
        driver.step()
    scheduler = driver.engine.scheduler
    assert (scheduler.num_waiting, scheduler.prefix_hit_tokens) == (1, 0)
    driver.run()
    assert (scheduler.prefix_hit_tokens, scheduler.prefix_miss_tokens) == (8, 9 + 12 + 12)


def test_a_gauge_of_blocks_in_use_does_not_count_what_is_only_cached() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=16))
    driver.add(add_request("a", range(12), max_tokens=1))
    driver.run()
    snapshot = driver.engine.snapshot()
    assert (snapshot.kv_blocks_live, snapshot.kv_blocks_cached, snapshot.kv_blocks_free) == (0, 3, 13)
