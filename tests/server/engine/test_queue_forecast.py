"""Predictions of a whole engine under load, on a machine whose step times and clock are the test's."""

import pytest

from tests.server.engine.counting_runner import BAD_TOKEN
from tests.server.engine.driving import add_request
from tests.server.engine.step_times import Machine
from tests.server.engine.timed_load import Load
from tidegate_server.engine.messages import AbortRequest


def test_an_idle_engine_predicts_no_delay() -> None:
    load = Load()
    assert load.predicted_s() == 0.0
    load.send()
    load.run()
    assert load.predicted_s() == 0.0


@pytest.mark.parametrize("num_kv_blocks", [2000, 120], ids=["short of seats", "short of blocks"])
def test_under_overload_predictions_come_near_to_what_happens(num_kv_blocks: int) -> None:
    load = Load(num_kv_blocks)
    for _ in range(200):
        load.send()
        for _ in range(3):
            load.step()
    load.run()
    assert max(load.queue_times.values()) > 1.0
    assert load.engine.snapshot().prediction_error_ratio < 0.35


def test_the_gauge_says_what_the_next_request_meets() -> None:
    load = Load()
    for _ in range(60):
        load.send()
    for _ in range(40):
        load.step()
    predicted_s = load.predicted_s()
    last = load.send()
    load.run()
    assert load.queue_times[last] == pytest.approx(predicted_s, rel=0.35)


def test_a_lightly_loaded_engine_is_right_about_no_delay() -> None:
    load = Load()
    for _ in range(30):
        load.send()
        load.run()
    assert load.engine.snapshot().prediction_error_ratio < 0.1


def test_outputs_that_end_early_shorten_the_next_prediction() -> None:
    """Clients allow 200 tokens and leave after a few: soon nobody believes the 200."""
    load = Load(max_num_seqs=1)
    first = load.send(200)
    load.step()
    load.step()
    before_s = load.predicted_s()
    for _ in range(20):
        load.engine.apply(AbortRequest(request_id=first))
        first = load.send(200)
        for _ in range(4):
            load.step()
    assert load.predicted_s() < before_s / 10


def test_a_request_that_leaves_before_its_turn_is_no_measurement() -> None:
    load = Load(max_num_seqs=1)
    load.send(50)
    load.step()
    error = load.engine.snapshot().prediction_error_ratio
    load.engine.apply(AbortRequest(request_id=load.send()))
    load.run()
    assert load.engine.snapshot().prediction_error_ratio == error


def test_a_step_time_that_repeats_is_known() -> None:
    load = Load(machine=Machine())
    for _ in range(40):
        load.send()
        load.step()
    load.run()
    assert load.engine.snapshot().step_time_error_ratio < 0.05


def test_a_step_that_failed_is_no_measurement() -> None:
    load = Load(machine=Machine())
    for _ in range(10):
        load.send()
    load.run()
    error = load.engine.snapshot().step_time_error_ratio
    load.engine.apply(add_request("bad", [BAD_TOKEN], arrival_s=load.runner.now))
    load.run()
    assert load.engine.snapshot().step_time_error_ratio == error
