"""The ring of the last steps: what it keeps, what it forgets, and what it does not tell."""

import msgspec
import pytest

from tests.server.engine.driving import Driver, add_request
from tests.server.engine.recordings import HEAD
from tidegate_server.engine.batch import RunnerBroken
from tidegate_server.engine.messages import AbortRequest, AddRequest, FinishReason
from tidegate_server.engine.recording import RecordedShare, Recording


def recording_of(driver: Driver) -> Recording:
    return driver.engine.recorder.recording(HEAD, "asked")


def test_a_step_is_kept_with_its_commands_shares_and_results() -> None:
    driver = Driver(record_dir="/records")
    driver.add(add_request("a", [1, 2, 3], max_tokens=2))
    driver.run()
    first, second = recording_of(driver).steps
    assert [recorded.command for recorded in first.commands] == [add_request("a", [1, 2, 3], max_tokens=2)]
    (share,) = first.scheduled
    assert (share.request_id, share.start, share.num_tokens) == ("a", 0, 3)
    assert [(result.token_ids, result.finish_reason) for result in first.results] == [((4,), None)]
    assert second.scheduled == (RecordedShare("a", 3, 1, share.seed),)
    assert [(result.token_ids, result.finish_reason) for result in second.results] == [((5,), FinishReason.LENGTH)]
    assert first.began_s < (first.ended_s or 0.0) < second.began_s


def test_without_a_folder_nothing_is_kept() -> None:
    driver = Driver()
    driver.add(add_request("a", [1]))
    driver.run()
    recording = recording_of(driver)
    assert (recording.steps, recording.head.known) == ((), ())


def test_an_idle_engine_records_nothing() -> None:
    driver = Driver(record_dir="/records")
    for _ in range(3):
        driver.step()
    assert recording_of(driver).steps == ()


def test_what_is_refused_leaves_no_trace() -> None:
    driver = Driver(record_dir="/records", record_steps=1)
    driver.add(add_request("a", [1], max_tokens=9), add_request("a", [2]), add_request("empty", []))
    driver.engine.apply(AbortRequest(request_id="nobody"))
    for _ in range(3):
        driver.step()
    recording = recording_of(driver)
    assert [(known.command.request_id, known.output_token_ids) for known in recording.head.known] == [("a", (2, 3))]


def test_the_head_knows_what_was_unfinished_before_the_first_step() -> None:
    driver = Driver(record_dir="/records", record_steps=2)
    driver.add(add_request("short", [1], max_tokens=2), add_request("long", [50], max_tokens=9))
    driver.step()
    driver.add(add_request("late", [80], max_tokens=9))
    for _ in range(5):
        driver.step()
    recording = recording_of(driver)
    assert not recording.is_whole
    assert [step.step for step in recording.steps] == [5, 6]
    known = [(each.command.request_id, each.output_token_ids) for each in recording.head.known]
    assert known == [("long", (51, 52, 53, 54)), ("late", (81, 82, 83))]


def test_requests_that_end_are_not_known_for_ever() -> None:
    driver = Driver(record_dir="/records", record_steps=1)
    driver.add(add_request("finished", [1], max_tokens=1), add_request("aborted", [20], max_tokens=200))
    driver.step()
    driver.engine.apply(AbortRequest(request_id="aborted"))
    driver.run()
    driver.add(add_request("other", [50], max_tokens=3))
    driver.run()
    assert [known.command.request_id for known in recording_of(driver).head.known] == ["other"]


def test_a_step_that_never_ended_is_the_last() -> None:
    def die() -> None:
        raise RunnerBroken("the device fell off the bus")

    driver = Driver(record_dir="/records")
    driver.add(add_request("a", [1]))
    with pytest.raises(RunnerBroken):
        driver.engine.step(before_run=die)
    (step,) = recording_of(driver).steps
    assert (step.step, step.ended_s, step.results) == (1, None, ())
    assert [share.request_id for share in step.scheduled] == ["a"]


def test_salts_are_told_apart_and_not_told() -> None:
    driver = Driver(record_dir="/records")
    salts = ["secret", "secret", "other", ""]
    driver.add(*(add_request(str(n), [1], cache_salt=salt) for n, salt in enumerate(salts)))
    driver.step()
    recording = recording_of(driver)
    assert b"secret" not in msgspec.json.encode(recording.steps)
    recorded = [each.command.cache_salt for each in recording.steps[0].commands if isinstance(each.command, AddRequest)]
    assert recorded[0] == recorded[1] != recorded[2]
    assert recorded[3] == ""
