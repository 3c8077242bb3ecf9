"""The engine by hand: failures that stay with their request, and the numbers it tells of itself."""

import pytest

from tests.server.engine.counting_runner import BAD_TOKEN, DEADLY_TOKEN, NAN_TOKEN, CountingRunner
from tests.server.engine.driving import Driver, add_request
from tidegate_contract.admin import ServerState
from tidegate_server.engine.batch import Batch, RunnerBroken, SampledToken
from tidegate_server.engine.event_log import EventKind
from tidegate_server.engine.fault_boundary import MAX_FAILED_STEPS
from tidegate_server.engine.messages import FinishReason, PreemptionCount
from tidegate_server.engine.preemption_kind import PreemptionKind, PreemptionReason
from tidegate_server.engine.snapshot import EngineSnapshot
from tidegate_server.settings import PreemptionMode


@pytest.mark.parametrize(
    ("culprit", "error"),
    [
        (BAD_TOKEN, f"ValueError: token {BAD_TOKEN} is bad"),
        (NAN_TOKEN, "the model computed no usable numbers at token 2 of this request"),
    ],
)
def test_one_bad_request_fails_alone(culprit: int, error: str) -> None:
    driver = Driver()
    driver.add(add_request("good", [1, 2]), add_request("bad", [1, culprit]), add_request("fine", [50]))
    driver.run()
    assert driver.last("bad").finish_reason is FinishReason.ERROR
    assert driver.last("bad").error == error
    assert not driver.last("bad").refused
    assert driver.tokens("good") == [3, 4, 5, 6]
    assert driver.tokens("fine") == [51, 52, 53, 54]
    assert [event.request_id for event in driver.engine.events.of(EventKind.FAILED)] == ["bad"]


def test_a_failed_request_gives_its_blocks_back() -> None:
    driver = Driver()
    driver.add(add_request("bad", [1, BAD_TOKEN]))
    driver.run()
    assert driver.engine.scheduler.pool.num_free == driver.engine.scheduler.pool.num_total


def test_a_request_that_cannot_even_be_taken_in_fails_alone() -> None:
    driver = Driver()
    driver.add(add_request("good", [1]), add_request("bad", [1], cache_salt="\ud800"))
    driver.run()
    assert driver.last("bad").finish_reason is FinishReason.ERROR
    assert "UnicodeEncodeError" in (driver.last("bad").error or "")
    assert driver.tokens("good") == [2, 3, 4, 5]
    assert driver.engine.snapshot().faults_request == 1


def test_a_lost_device_ends_the_engine() -> None:
    driver = Driver()
    driver.add(add_request("a", [1]), add_request("deadly", [DEADLY_TOKEN]))
    with pytest.raises(RunnerBroken, match="fell off the bus"):
        driver.run()


class BrokenRunner(CountingRunner):
    """Fails whatever it is given, and says no more."""

    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        raise ValueError("no")


def test_an_engine_that_fails_everything_gives_up() -> None:
    driver = Driver(BrokenRunner())
    for number in range(MAX_FAILED_STEPS - 1):
        driver.add(add_request(str(number), [1]))
        driver.run()
    driver.add(add_request("last", [1]))
    with pytest.raises(RunnerBroken, match="every request failed in 5 steps in a row"):
        driver.run()


def test_a_bad_prompt_sent_again_and_again_never_ends_the_engine() -> None:
    driver = Driver()
    for number in range(3 * MAX_FAILED_STEPS):
        driver.add(add_request(f"bad {number}", [BAD_TOKEN]))
        driver.run()
        assert driver.last(f"bad {number}").finish_reason is FinishReason.ERROR
    driver.add(add_request("good", [1], max_tokens=1))
    driver.run()
    assert driver.tokens("good") == [2]


def test_requests_with_bad_logits_never_end_the_engine() -> None:
    driver = Driver()
    for number in range(2 * MAX_FAILED_STEPS):
        driver.add(add_request(f"a {number}", [NAN_TOKEN]), add_request(f"b {number}", [NAN_TOKEN]))
        driver.run()
        assert driver.last(f"b {number}").finish_reason is FinishReason.ERROR
    driver.add(add_request("good", [1], max_tokens=1))
    driver.run()
    assert driver.tokens("good") == [2]


class ForgetfulRunner(CountingRunner):
    """Draws for nobody."""

    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        return super().run(batch)[:0]


def test_a_runner_that_draws_for_the_wrong_requests_fails_them() -> None:
    driver = Driver(ForgetfulRunner())
    driver.add(add_request("a", [1]))
    driver.run()
    assert "instead of ['a']" in (driver.last("a").error or "")


def test_a_step_with_nothing_to_do_tells_nothing() -> None:
    driver = Driver()
    assert driver.engine.step() is None
    assert not driver.engine.has_work


def test_a_refusal_leaves_with_a_step_that_computed_nothing() -> None:
    driver = Driver()
    driver.add(add_request("a", []))
    output = driver.engine.step()
    assert output is not None
    assert (output.num_new_tokens, len(output.outputs)) == (0, 1)


def test_abort_all_ends_everybody() -> None:
    driver = Driver(max_num_seqs=1)
    driver.add(add_request("running", [1]), add_request("waiting", [2]))
    driver.step()
    driver.engine.abort_all("the server shuts down")
    driver.run()
    assert [driver.last(name).finish_reason for name in ("running", "waiting")] == [FinishReason.ABORT] * 2
    assert driver.engine.scheduler.pool.num_live == 0


def test_the_snapshot_shows_the_engine_as_it_is() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=16), max_num_seqs=1)
    driver.add(add_request("a", range(5)), add_request("b", range(50, 57)))
    driver.step()
    snapshot = driver.engine.snapshot()
    assert snapshot.state is ServerState.READY
    assert (snapshot.num_running, snapshot.num_waiting, snapshot.waiting_prompt_tokens) == (1, 1, 7)
    assert (snapshot.kv_blocks_live, snapshot.kv_blocks_free, snapshot.kv_blocks_total) == (2, 14, 16)
    assert (snapshot.step, snapshot.num_requests, snapshot.max_num_seqs, snapshot.block_size) == (1, 2, 1, 4)
    driver.run()
    idle = driver.engine.snapshot()
    assert (idle.num_running, idle.num_waiting, idle.kv_blocks_live) == (0, 0, 0)
    assert idle.progress_at_s > snapshot.progress_at_s


def test_while_a_step_runs_the_snapshot_tells_of_it() -> None:
    driver = Driver()
    seen: list[EngineSnapshot] = []
    driver.add(add_request("a", range(5)), add_request("b", [50]))
    driver.engine.step(before_run=lambda: seen.append(driver.engine.snapshot()))
    (during,) = seen
    assert during.is_stepping
    assert (during.step, during.step_num_requests, during.step_num_tokens) == (1, 2, 6)
    after = driver.engine.snapshot()
    assert not after.is_stepping
    assert after.progress_at_s > during.progress_at_s


def test_the_snapshot_counts_faults_by_kind() -> None:
    driver = Driver()
    driver.add(add_request("a", [NAN_TOKEN]), add_request("b", [BAD_TOKEN]), add_request("c", [1]))
    driver.run()
    snapshot = driver.engine.snapshot()
    assert (snapshot.faults_bad_logits, snapshot.faults_request) == (1, 1)
    assert snapshot.faults_step == 1  # what was left of the batch without the request that was named
    assert (snapshot.faults_out_of_memory, snapshot.faults_copy) == (0, 0)


def test_the_same_commands_give_the_same_batches() -> None:
    def batches() -> list[Batch]:
        driver = Driver(CountingRunner(num_kv_blocks=6, mixes=True), seed=3)
        for number in range(5):
            driver.add(add_request(str(number), range(number * 10, number * 10 + 6), max_tokens=12))
            driver.step()
        driver.run()
        return driver.batches

    assert batches() == batches()


def test_a_step_tells_how_many_tokens_it_prefilled_and_how_many_it_decoded() -> None:
    driver = Driver()
    driver.add(add_request("old", range(5)))
    first = driver.engine.step()
    driver.add(add_request("new", range(50, 57)))
    second = driver.engine.step()
    assert first is not None
    assert second is not None
    assert (first.num_prefill_tokens, first.num_decode_tokens) == (5, 0)
    assert (second.num_prefill_tokens, second.num_decode_tokens, second.num_new_tokens) == (7, 1, 8)


def test_each_preemption_is_told_once_with_its_kind_and_reason() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=6), preemption_mode=PreemptionMode.RECOMPUTE)
    driver.add(add_request("old", range(7), max_tokens=15), add_request("new", range(50, 57), max_tokens=15))
    told: list[PreemptionCount] = []
    while driver.engine.has_work:
        output = driver.engine.step()
        assert output is not None
        told += output.preemptions
    assert told == [PreemptionCount(PreemptionKind.RECOMPUTE, PreemptionReason.BLOCKS, 1)]
    assert driver.engine.snapshot().num_preemptions == 1


def test_the_snapshot_shows_what_swapped_requests_hold_in_host_memory() -> None:
    driver = Driver(CountingRunner(num_kv_blocks=6, num_host_blocks=8), preemption_mode=PreemptionMode.SWAP)
    driver.add(add_request("old", range(7), max_tokens=15), add_request("new", range(50, 57), max_tokens=15))
    while driver.engine.snapshot().num_preemptions == 0:
        driver.step()
    snapshot = driver.engine.snapshot()
    assert snapshot.host_blocks_held > 0
    assert snapshot.host_blocks_total == 8
    driver.run()
    assert driver.engine.snapshot().host_blocks_held == 0
