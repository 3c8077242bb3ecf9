"""Full queues, deadlines, shares between tenants and the limit against thrash, as the whole engine keeps them."""

import msgspec

from tests.server.engine.counting_runner import CountingRunner
from tests.server.engine.driving import Driver, add_request
from tidegate_server.engine.event_log import EventKind
from tidegate_server.engine.messages import AddRequest, FinishReason
from tidegate_server.settings import Fairness


def of(tenant: str, *numbers: int) -> list[AddRequest]:
    """Requests of one tenant, of equal size."""
    return [
        msgspec.structs.replace(add_request(f"{tenant}{number}", [number, 10 * number, 7]), tenant=tenant)
        for number in numbers
    ]


def until(command: AddRequest, deadline_s: float) -> AddRequest:
    return msgspec.structs.replace(command, deadline_s=deadline_s)


def admitted(driver: Driver) -> list[str]:
    return [str(event.request_id) for event in driver.engine.events.of(EventKind.ADMITTED)]


def computed(driver: Driver) -> set[str]:
    return {str(share.request_id) for batch in driver.batches for share in batch.scheduled}


def test_tenants_take_turns_whoever_sends_more() -> None:
    driver = Driver(fairness=Fairness.TENANT, max_num_seqs=1)
    driver.add(*of("many", 1, 2, 3, 4), *of("few", 5, 6))
    driver.run()
    assert admitted(driver) == ["many1", "few5", "many2", "few6", "many3", "many4"]


def test_tenants_take_turns_within_one_step() -> None:
    driver = Driver(fairness=Fairness.TENANT, max_num_seqs=4)
    driver.add(*of("many", 1, 2, 3, 4), *of("few", 5, 6))
    driver.step()
    assert admitted(driver) == ["many1", "few5", "many2", "few6"]


def test_without_fairness_requests_go_by_arrival() -> None:
    driver = Driver(max_num_seqs=1)
    driver.add(*of("many", 1, 2, 3, 4), *of("few", 5, 6))
    driver.run()
    assert admitted(driver) == ["many1", "many2", "many3", "many4", "few5", "few6"]


def test_a_request_that_waits_past_its_deadline_is_told_so_and_never_computed() -> None:
    driver = Driver(max_num_seqs=1)
    driver.add(add_request("runs", range(5), max_tokens=20), until(add_request("late", range(5)), driver.clock.now + 5))
    driver.step()
    driver.clock.now += 5
    driver.run()
    last = driver.last("late")
    assert (last.finish_reason, last.timed_out, last.refused) == (FinishReason.ERROR, True, False)
    assert last.error is not None
    assert "late" not in computed(driver)
    assert len(driver.tokens("runs")) == 20


def test_a_deadline_ends_nothing_that_was_begun() -> None:
    driver = Driver()
    driver.add(until(add_request("begun", range(5), max_tokens=9), driver.clock.now + 5))
    driver.step()
    driver.clock.now += 5
    driver.engine.scheduler.preempt("begun", driver.clock.now, "a test wants it")
    driver.run()
    assert len(driver.tokens("begun")) == 9


def test_choices_are_begun_with_the_one_that_computes_their_prompt() -> None:
    driver = Driver(max_num_batched_tokens=4)
    deadline_s = driver.clock.now + 5
    driver.add(
        until(add_request("first", range(20)), deadline_s),
        until(add_request("second", range(20), leader_id="first"), deadline_s),
    )
    driver.step()
    driver.clock.now += 5
    driver.run()
    assert driver.last("first").finish_reason is FinishReason.LENGTH
    assert driver.last("second").finish_reason is FinishReason.LENGTH


def test_a_choice_that_takes_over_the_prompt_has_its_deadline_still() -> None:
    driver = Driver(max_num_seqs=1)
    deadline_s = driver.clock.now + 5
    driver.add(
        add_request("runs", range(5), max_tokens=20),
        until(add_request("first", range(9)), deadline_s),
        until(add_request("second", range(9), leader_id="first"), deadline_s),
    )
    driver.step()
    driver.clock.now += 5
    driver.run()
    assert driver.last("first").timed_out
    assert driver.last("second").timed_out
    assert computed(driver) == {"runs"}


def test_a_full_queue_refuses_without_queueing_and_takes_again_later() -> None:
    driver = Driver(max_num_seqs=1, max_queued_requests=1)
    driver.add(add_request("a", range(5)))
    driver.step()
    driver.add(add_request("b", range(5)), add_request("c", range(5)))
    driver.run()
    last = driver.last("c")
    assert (last.finish_reason, last.overloaded, last.refused) == (FinishReason.ERROR, True, False)
    assert computed(driver) == {"a", "b"}
    driver.add(add_request("c", range(5)))
    driver.run()
    assert driver.last("c").finish_reason is FinishReason.LENGTH


def test_the_level_of_thrash_rises_with_work_done_again_and_is_gone_when_idle() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=6), prefix_caching=False)
    driver.add(add_request("old", range(7), max_tokens=15), add_request("new", range(50, 57), max_tokens=15))
    levels = []
    while driver.engine.has_work:
        driver.step()
        levels.append(driver.engine.snapshot().thrash_level)
    assert max(levels) > 0
    driver.step()
    assert driver.engine.snapshot().thrash_level == 0


def test_the_choices_of_a_prompt_come_in_together_or_not_at_all() -> None:
    driver = Driver(CountingRunner(mixes=True), max_num_seqs=1, max_queued_requests=2)
    driver.add(add_request("runs", range(5), max_tokens=9))
    driver.step()
    driver.add(add_request("first", [1, 2]), *(add_request(f"choice {n}", [1, 2], leader_id="first") for n in range(8)))
    driver.add(add_request("one too many", [3]))
    driver.run()
    assert [name for name in driver.outputs if driver.last(name).overloaded] == ["one too many"]


def test_all_choices_of_an_expired_prompt_expire_with_it() -> None:
    driver = Driver(max_num_seqs=1)
    deadline_s = driver.clock.now + 5
    driver.add(add_request("runs", range(5), max_tokens=20))
    driver.step()
    driver.add(
        *(
            until(add_request(f"c{number}", [7, 7, 7], leader_id="c0" if number else ""), deadline_s)
            for number in range(3)
        )
    )
    driver.clock.now += 6
    driver.step()
    assert [driver.last(f"c{number}").timed_out for number in range(3)] == [True] * 3
    driver.run()
    assert computed(driver) == {"runs"}
