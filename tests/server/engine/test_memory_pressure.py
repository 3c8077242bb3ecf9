"""Preempting in each way, host memory as a second tier, seats and ages. The pools hold blocks of 4 tokens."""

from collections.abc import Iterable

import pytest

from tests.server.engine.counting_runner import CopyDirection, CountingRunner
from tests.server.engine.driving import Driver, add_request, tokens_alone
from tidegate_server.engine.batch import BlockCopy
from tidegate_server.engine.event_log import EventKind
from tidegate_server.engine.messages import AbortRequest, AddRequest
from tidegate_server.engine.preemption_kind import PreemptionKind, PreemptionReason
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.engine.scheduler import Scheduler
from tidegate_server.settings import PreemptionMode


def pressed(mode: PreemptionMode, num_host_blocks: int = 16, **settings: object) -> Driver:
    """An engine whose six blocks are too few for both requests of `two_requests`."""
    runner = CountingRunner(num_kv_blocks=6, num_host_blocks=num_host_blocks, mixes=True)
    return Driver(runner, preemption_mode=mode, **settings)


def two_requests() -> list[AddRequest]:
    return [
        add_request("old", range(7), sampling=SamplingParams(max_tokens=15, seed=1)),
        add_request("new", range(50, 57), sampling=SamplingParams(max_tokens=15, seed=2)),
    ]


def check_alone(driver: Driver, commands: Iterable[AddRequest]) -> None:
    for command in commands:
        assert driver.tokens(command.request_id) == tokens_alone(command, CountingRunner(mixes=True))


@pytest.mark.parametrize("mode", PreemptionMode)
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_every_way_of_preempting_keeps_the_tokens(mode: PreemptionMode, prefix_caching: bool) -> None:
    driver = pressed(mode, prefix_caching=prefix_caching)
    driver.add(*two_requests())
    driver.run()
    assert driver.engine.scheduler.num_preemptions > 0
    check_alone(driver, two_requests())
    for pool in (driver.engine.scheduler.pool, driver.engine.scheduler.host.pool):  # type: ignore[union-attr]  # it has a host pool
        assert (pool.num_live, pool.num_pending) == (0, 0)


def test_a_swapped_request_computes_nothing_again() -> None:
    driver = pressed(PreemptionMode.SWAP, prefix_caching=False)
    driver.add(*two_requests())
    driver.run()
    assert set(driver.engine.scheduler.preemptions) == {(PreemptionKind.SWAP, PreemptionReason.BLOCKS)}
    computed = [share for batch in driver.batches for share in batch.scheduled if share.request_id == "new"]
    positions = [position for share in computed for position in range(share.start, share.stop)]
    assert positions == list(range(7 + 14))
    assert driver.engine.scheduler.recomputed_tokens == 0


def test_a_trimmed_request_computes_its_tail_again_and_nothing_else() -> None:
    driver = pressed(PreemptionMode.TAIL, prefix_caching=False)
    driver.add(*two_requests())
    driver.run()
    scheduler = driver.engine.scheduler
    assert (PreemptionKind.TAIL, PreemptionReason.BLOCKS) in scheduler.preemptions
    assert 0 < scheduler.recomputed_tokens < 20


def test_without_room_on_the_host_a_swap_becomes_a_recomputation() -> None:
    driver = pressed(PreemptionMode.SWAP, num_host_blocks=1)
    driver.add(*two_requests())
    driver.run()
    assert set(driver.engine.scheduler.preemptions) == {(PreemptionKind.RECOMPUTE, PreemptionReason.BLOCKS)}
    check_alone(driver, two_requests())


@pytest.mark.parametrize("direction", ["swap_out", "swap_in"])
def test_a_failed_copy_falls_back_to_recomputation_and_loses_nobody(direction: CopyDirection) -> None:
    driver = pressed(PreemptionMode.SWAP)

    def copy_fails(of: CopyDirection, copy: BlockCopy) -> bool:
        return of == direction

    driver.runner.copy_fails = copy_fails
    driver.add(*two_requests())
    driver.run()
    assert driver.engine.events.of(EventKind.COPY_FAILED)
    check_alone(driver, two_requests())


def test_a_swapped_request_that_is_aborted_gives_its_host_blocks_back() -> None:
    driver = pressed(PreemptionMode.SWAP, prefix_caching=False)
    driver.add(*two_requests())
    while not driver.engine.events.of(EventKind.PREEMPTED):
        driver.step()
    host = driver.engine.scheduler.host
    assert host is not None
    assert host.pool.num_live > 0
    driver.engine.apply(AbortRequest(request_id="new"))
    assert (host.pool.num_live, host.pool.num_free) == (0, 16)
    driver.run()


def test_a_block_that_left_the_device_is_found_in_host_memory() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=6, num_host_blocks=16, mixes=True))
    first = add_request("first", range(17), sampling=SamplingParams(max_tokens=1, seed=1))
    again = add_request("again", range(17), sampling=SamplingParams(max_tokens=1, seed=1))
    for command in (first, add_request("other", range(50, 71)), again):
        driver.add(command)
        driver.run()
    assert driver.last("again").num_cached_tokens == 16
    assert driver.engine.scheduler.prefix_host_hit_tokens > 0
    assert driver.tokens("again") == driver.tokens("first")


def test_swapped_requests_take_the_place_of_what_is_only_cached_on_the_host() -> None:
    driver = pressed(PreemptionMode.SWAP, num_host_blocks=4)
    driver.add(add_request("before", range(80, 103), max_tokens=1))
    driver.run()
    driver.add(*two_requests())
    driver.run()
    assert (PreemptionKind.SWAP, PreemptionReason.BLOCKS) in driver.engine.scheduler.preemptions
    check_alone(driver, two_requests())


def test_after_three_preemptions_a_request_has_its_longest_output_reserved() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=8, vocab_size=900, mixes=True))
    command = add_request("a", range(5), sampling=SamplingParams(max_tokens=20, seed=1))
    driver.add(command)
    for _ in range(3):
        driver.step()
        driver.engine.scheduler.preempt("a", 0.0, "told to")
    driver.step()
    assert len(driver.batches[-1].scheduled[0].block_table) == 7  # of 25 tokens
    driver.add(add_request("urgent", range(50, 60), max_tokens=12, priority=-1))
    driver.run()
    assert driver.last("a").num_preemptions == 3
    assert driver.tokens("a") == tokens_alone(command, CountingRunner(vocab_size=900, mixes=True))


# Seats.


def test_a_strictly_higher_priority_takes_the_last_seat() -> None:
    driver = Driver(CountingRunner(mixes=True), max_num_seqs=1)
    batch = add_request("batch", range(6), priority=5, sampling=SamplingParams(max_tokens=9, seed=1))
    chat = add_request("chat", range(50, 53), priority=0, sampling=SamplingParams(max_tokens=3, seed=2))
    driver.add(batch)
    driver.step()
    driver.add(chat)
    driver.run()
    assert driver.engine.scheduler.preemptions == {(PreemptionKind.TAIL, PreemptionReason.SEATS): 1}
    order = [event.request_id for event in driver.engine.events.of(EventKind.FINISHED)]
    assert order == ["chat", "batch"]
    assert driver.engine.scheduler.recomputed_tokens == 0  # it kept all its blocks
    check_alone(driver, [batch, chat])


def test_an_equal_priority_takes_no_seat() -> None:
    driver = Driver(max_num_seqs=1)
    driver.add(add_request("first", range(6), max_tokens=9))
    driver.step()
    driver.add(add_request("second", range(50, 53), max_tokens=3))
    driver.run()
    assert driver.engine.scheduler.num_preemptions == 0


def test_a_low_priority_that_waited_too_long_is_served_before_the_stream_of_high_ones() -> None:
    driver = Driver(max_num_seqs=1, max_queue_age_s=0.05)  # a look at the clock is a millisecond
    driver.add(add_request("busy", [1], max_tokens=3), add_request("patient", [2], priority=9))
    for number in range(60):
        driver.add(add_request(f"urgent-{number}", [number], max_tokens=3))
        for _ in range(3):
            driver.step()
        if "patient" in driver.outputs:
            break
    assert driver.engine.events.of(EventKind.AGED, "patient")
    assert "patient" in driver.outputs
    driver.run()


def test_requests_that_hold_blocks_while_they_wait_do_not_wait_for_each_other() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=8, mixes=True), prefix_caching=False)
    commands = [
        add_request(name, range(start, start + 10), sampling=SamplingParams(max_tokens=12, seed=1))
        for name, start in (("a", 0), ("b", 20))
    ]
    driver.add(*commands)
    for _ in range(4):
        driver.step()
    for name in ("a", "b"):
        driver.engine.scheduler.preempt(name, 0.0, "told to", PreemptionKind.TAIL)
    driver.run()
    check_alone(driver, commands)


def test_a_thousand_aborts_at_any_moment_leave_nothing_behind() -> None:
    runner = CountingRunner(num_kv_blocks=24, num_host_blocks=8, vocab_size=900, mixes=True)
    driver = Driver(runner, max_num_seqs=6, max_num_batched_tokens=16)
    scheduler = driver.engine.scheduler
    for number in range(1000):
        leader = f"r{number - 1}" if number % 5 == 4 else ""
        driver.add(
            add_request(
                f"r{number}",
                [number // 5 % 3, *range(number % 11)],
                max_tokens=1 + number % 17,
                priority=number % 3,
                leader_id=leader,
            )
        )
        if number % 4 == 0:
            driver.step()
        driver.engine.apply(AbortRequest(request_id=f"r{number * 7919 % (number + 1)}"))
    for request_id in scheduler.unfinished_ids():
        driver.engine.apply(AbortRequest(request_id=request_id))
    driver.run()
    snapshot = driver.engine.snapshot()
    assert (snapshot.num_running, snapshot.num_waiting, snapshot.waiting_prompt_tokens) == (0, 0, 0)
    assert (snapshot.kv_blocks_live, snapshot.kv_blocks_pending) == (0, 0)
    assert scheduler.host is not None
    assert (scheduler.host.pool.num_live, scheduler.host.pool.num_pending) == (0, 0)


def test_bytes_that_were_swapped_are_counted_in_both_directions() -> None:
    driver = pressed(PreemptionMode.SWAP, prefix_caching=False)
    driver.add(*two_requests())
    driver.run()
    snapshot = driver.engine.snapshot()
    assert snapshot.swapped_out_bytes == snapshot.swapped_in_bytes > 0
    assert snapshot.swapped_out_bytes % driver.runner.block_bytes == 0


def test_a_swap_that_makes_room_stalls_nobody() -> None:
    driver = pressed(PreemptionMode.SWAP)
    driver.add(*two_requests())
    while not driver.engine.events.of(EventKind.PREEMPTED):
        driver.step()
    (share,) = driver.batches[-1].scheduled
    assert share.request_id == "old"
    assert driver.batches[-1].copies.swap_out
    driver.run()


def test_a_high_priority_takes_a_seat_in_front_of_a_backlog_that_has_waited_too_long() -> None:
    driver = Driver(max_num_seqs=2, max_queue_age_s=0.05)
    driver.add(*(add_request(f"low {number}", [number], max_tokens=30, priority=5) for number in range(20)))
    for _ in range(8):
        driver.step()
    driver.clock.now += 10
    driver.add(add_request("high", [77], max_tokens=2, priority=0))
    driver.step()
    assert "high" in {share.request_id for share in driver.batches[-1].scheduled}
    driver.run()


def test_who_was_seated_in_a_step_is_not_preempted_in_it() -> None:
    runner = CountingRunner(num_kv_blocks=12, num_host_blocks=12, mixes=True)
    driver = Driver(runner, max_num_seqs=1, preemption_mode=PreemptionMode.SWAP, prefix_caching=False)
    commands = [
        add_request(name, range(start, start + 6), priority=priority, sampling=SamplingParams(max_tokens=9, seed=1))
        for name, start, priority in (("low", 0, 2), ("middle", 20, 1), ("high", 40, 0))
    ]
    scheduler = driver.engine.scheduler
    assert isinstance(scheduler, Scheduler)
    driver.add(commands[1])
    driver.step()
    driver.step()
    scheduler.preempt("middle", 0.0, "told to", PreemptionKind.SWAP)
    driver.add(commands[0])
    scheduler.change_priority("middle", 3, 0.0)
    driver.step()
    scheduler.change_priority("middle", 1, 0.0)
    driver.add(commands[2])
    driver.run()
    for command in commands:
        assert driver.tokens(command.request_id) == tokens_alone(command, CountingRunner(mixes=True))
