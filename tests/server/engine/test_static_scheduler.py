"""Static batching: exact tokens, at the full price of a padded group."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.engine.counting_runner import BAD_TOKEN, CountingRunner
from tests.server.engine.driving import Driver, add_request, tokens_alone
from tidegate_server.engine.event_log import EventKind
from tidegate_server.engine.messages import AbortRequest, AddRequest, FinishReason
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.engine.scheduling import StepScheduler
from tidegate_server.settings import SchedulerKind


def static(runner: CountingRunner | None = None, **engine_settings: object) -> Driver:
    return Driver(runner, scheduler=SchedulerKind.STATIC, **engine_settings)


def num_computed(driver: Driver) -> list[int]:
    """Tokens that each step computed."""
    return [sum(share.num_new_tokens for share in batch.scheduled) for batch in driver.batches]


def groups(driver: Driver) -> list[list[str | None]]:
    """The requests that were admitted together, in order."""
    admitted: dict[int, list[str | None]] = {}
    for event in driver.engine.events.of(EventKind.ADMITTED):
        admitted.setdefault(event.step, []).append(event.request_id)
    return list(admitted.values())


def blocks(scheduler: StepScheduler) -> tuple[int, int]:
    return (scheduler.pool.num_live, scheduler.pool.num_free)


def test_nobody_joins_a_group_that_runs() -> None:
    driver = static(max_num_seqs=3)
    driver.add(add_request("a", [1], max_tokens=2), add_request("b", [1], max_tokens=9))
    driver.step()
    driver.add(add_request("late", [1], max_tokens=1))
    driver.run()
    assert groups(driver) == [["a", "b"], ["late"]]
    (ended,) = driver.engine.events.of(EventKind.FINISHED, "b")
    (late,) = driver.engine.events.of(EventKind.FIRST_TOKEN, "late")
    assert late.step == ended.step + 1


def test_the_shorter_prompts_are_padded_to_the_longest() -> None:
    driver = static()
    driver.add(add_request("short", [1], max_tokens=1), add_request("long", range(50, 60), max_tokens=1))
    driver.run()
    assert num_computed(driver) == [2 * 10]


def test_finished_rows_are_computed_until_the_last_is_done() -> None:
    driver = static()
    driver.add(*(add_request(str(number), [number], max_tokens=number) for number in (1, 2, 5)))
    driver.run()
    assert num_computed(driver) == [3] * 5
    assert [len(driver.tokens(str(number))) for number in (1, 2, 5)] == [1, 2, 5]


def test_a_group_larger_than_a_step_is_prefilled_in_several_with_its_padding() -> None:
    driver = static(max_num_batched_tokens=6)
    driver.add(add_request("short", [1, 2], max_tokens=2), add_request("long", range(50, 57), max_tokens=2))
    driver.run()
    assert num_computed(driver) == [6, 6, 2, 2]
    assert driver.tokens("short") == [3, 4]
    assert driver.tokens("long") == [57, 58]


def test_a_group_has_as_many_requests_as_fit_with_their_longest_output() -> None:
    driver = static(CountingRunner(num_kv_blocks=6))
    driver.add(*(add_request(str(number), range(number, number + 3), max_tokens=9) for number in (10, 20, 30)))
    driver.run()
    assert groups(driver) == [["10", "20"], ["30"]]  # three blocks of four tokens each


def test_who_does_not_fit_holds_up_those_behind() -> None:
    driver = static(CountingRunner(num_kv_blocks=6))
    driver.add(add_request("a", range(3), max_tokens=9), add_request("large", range(20)), add_request("small", [1]))
    driver.run()
    assert groups(driver) == [["a"], ["large"], ["small"]]


def test_lower_numbers_are_seated_first() -> None:
    driver = static(max_num_seqs=2)
    driver.add(*(add_request(name, [1], priority=priority) for name, priority in (("c", 2), ("b", 1), ("a", 0))))
    driver.run()
    assert groups(driver) == [["a", "b"], ["c"]]


def test_an_aborted_row_is_told_at_once_and_computed_with_its_group() -> None:
    driver = static()
    driver.add(add_request("gone", [1], max_tokens=9), add_request("stays", [50], max_tokens=4))
    driver.step()
    driver.engine.apply(AbortRequest(request_id="gone"))
    driver.run()
    assert driver.last("gone").finish_reason is FinishReason.ABORT
    assert driver.tokens("stays") == [51, 52, 53, 54]
    assert num_computed(driver) == [2] * 4


def test_a_group_whose_rows_have_all_left_gives_its_blocks_back_at_once() -> None:
    driver = static(max_num_seqs=2)
    driver.add(add_request("a", range(9)), add_request("b", range(9)), add_request("waiting", range(9)))
    driver.step()
    driver.engine.abort_all("the server shuts down")
    scheduler = driver.engine.scheduler
    assert blocks(scheduler) == (0, scheduler.pool.num_total)
    driver.run()
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.waiting_tokens) == (0, 0, 0)
    assert {driver.last(name).finish_reason for name in ("a", "b", "waiting")} == {FinishReason.ABORT}


def test_a_result_of_an_aborted_request_is_dropped_and_its_blocks_wait_for_the_step() -> None:
    driver = static()
    scheduler = driver.engine.scheduler
    scheduler.add(add_request("a", range(6)), 0.0)
    batch = scheduler.schedule(0.0)
    scheduler.abort("a", 0.0)
    assert not scheduler.has_unfinished
    assert scheduler.pool.num_live == 3
    assert scheduler.update(batch, driver.runner.run(batch), 0.0) == ()
    assert (scheduler.num_stale_results, scheduler.pool.num_live) == (1, 0)


def test_only_one_step_is_in_flight() -> None:
    scheduler = static().engine.scheduler
    scheduler.add(add_request("a", range(6)), 0.0)
    assert scheduler.schedule(0.0).scheduled
    assert not scheduler.schedule(0.0).scheduled


def test_a_row_that_cannot_be_computed_fails_alone_and_leaves_its_group() -> None:
    driver = static()
    driver.add(add_request("bad", [BAD_TOKEN], max_tokens=9), add_request("good", [1, 2], max_tokens=3))
    driver.run()
    assert driver.last("bad").finish_reason is FinishReason.ERROR
    assert driver.tokens("good") == [3, 4, 5]
    assert [[share.request_id for share in batch.scheduled] for batch in driver.batches[-2:]] == [["good"], ["good"]]


def test_an_id_in_use_is_refused() -> None:
    driver = static()
    driver.add(add_request("a", [1]), add_request("a", [50]))
    driver.run()
    assert driver.tokens("a") == [2, 3, 4, 5]
    assert [output.refused for output in driver.outputs["a"]].count(True) == 1


def test_an_id_can_come_back_while_the_group_of_its_first_owner_runs() -> None:
    driver = static()
    driver.add(add_request("a", [1], max_tokens=1), add_request("b", [50], max_tokens=5))
    driver.step()
    driver.add(add_request("a", [70], max_tokens=2))
    driver.run()
    assert driver.tokens("a") == [2, 71, 72]
    assert driver.tokens("b") == [51, 52, 53, 54, 55]


def test_who_waits_past_its_deadline_is_given_up_and_those_in_the_group_are_not() -> None:
    driver = static(max_num_seqs=1)
    seated, late = (msgspec.structs.replace(add_request(name, [1], max_tokens=9), deadline_s=101.0) for name in "ab")
    driver.add(seated, late)
    driver.step()
    driver.clock.now = 200.0
    driver.run()
    assert driver.last("b").timed_out
    assert driver.last("a").finish_reason is FinishReason.LENGTH
    assert driver.engine.scheduler.waiting_tokens == 0


def test_a_full_queue_takes_no_more() -> None:
    driver = static(max_num_seqs=1, max_queued_requests=1)
    driver.add(add_request("a", [1]))
    driver.step()
    driver.add(add_request("b", [1]), add_request("c", [1]))
    driver.run()
    assert [driver.last(name).overloaded for name in "abc"] == [False, False, True]


def test_the_forecast_keeps_nothing_of_requests_that_have_ended() -> None:
    driver = static()
    driver.add(add_request("a", range(9), max_tokens=1), add_request("b", [1], max_tokens=5))
    driver.run()
    assert driver.engine._forecast._shares == {}


requests = st.lists(
    st.builds(
        lambda length, start, max_tokens, seed, min_tokens: (
            [start + position for position in range(length)],
            SamplingParams(max_tokens=max_tokens, seed=seed, min_tokens=min_tokens),
        ),
        length=st.integers(1, 20),
        start=st.integers(0, 10),
        max_tokens=st.integers(1, 12),
        seed=st.integers(0, 1),
        min_tokens=st.sampled_from([0, 3]),
    ),
    min_size=1,
    max_size=6,
)


def make_runner() -> CountingRunner:
    return CountingRunner(num_kv_blocks=9, max_model_len=30, vocab_size=40, eos_token_ids=(3,), mixes=True)


@given(requests, st.integers(1, 4), st.sampled_from([1, 3, 16, 64]))
@settings(max_examples=100, deadline=None)
def test_everybody_gets_what_they_would_get_from_continuous_batching_alone(
    given_requests: list[tuple[list[int], SamplingParams]], max_num_seqs: int, max_num_batched_tokens: int
) -> None:
    driver = static(make_runner(), max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    commands: list[AddRequest] = [
        add_request(str(number), prompt, sampling=sampling) for number, (prompt, sampling) in enumerate(given_requests)
    ]
    for command in commands:
        driver.add(command)
        driver.step()
        assert driver.engine.audit() == ()
    driver.run()
    for command in commands:
        assert driver.tokens(command.request_id) == tokens_alone(command, make_runner())
    scheduler = driver.engine.scheduler
    assert blocks(scheduler) == (0, scheduler.pool.num_total)
    assert max(num_computed(driver)) <= max_num_batched_tokens


def test_requests_without_a_seed_get_the_same_one_from_either_scheduler() -> None:
    seeds: list[list[int]] = []
    for kind in SchedulerKind:
        driver = Driver(scheduler=kind, seed=7)
        driver.add(add_request("a", [1]), add_request("b", [1]))
        driver.step()
        seeds.append([share.seed for share in driver.batches[0].scheduled])
    assert seeds[0] == seeds[1]
