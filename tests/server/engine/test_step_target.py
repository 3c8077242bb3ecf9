"""Streams beside a long prompt, in a whole engine."""

import pytest

from tests.server.engine.step_times import Machine
from tests.server.engine.timed_load import Load
from tidegate_server.engine.step_time import shape_of


def lengthened(step_time_target: float) -> list[float]:
    """Of each step that computes a prompt of 1,000 tokens: how many times as long it takes as its decodes alone."""
    load = Load(machine=Machine(), step_time_target=step_time_target)
    for _ in range(7):
        load.send(num_output_tokens=500)
    for _ in range(70):
        load.step()
    num_before = len(load.runner.batches)
    prompt = load.send(num_prompt_tokens=1000)
    while prompt not in load.queue_times:
        load.step()
    seconds = load.runner.machine.seconds
    return [
        seconds(shape_of(batch.scheduled))
        / seconds(shape_of(share for share in batch.scheduled if share.request_id != prompt))
        for batch in load.runner.batches[num_before:]
    ]


@pytest.mark.parametrize("target", [1.5, 2.0, 4.0])
def test_a_long_prompt_holds_streams_back_no_more_than_the_target(target: float) -> None:
    ratios = lengthened(target)
    assert max(ratios) <= target
    assert sum(ratios) / len(ratios) > 1 + 0.65 * (target - 1)  # and the prompt gets most of what the target leaves


def test_without_a_target_a_prompt_takes_as_few_steps_as_the_cap_allows() -> None:
    ratios = lengthened(0)
    assert len(ratios) == 9  # 128 tokens a step, of which seven are the streams'
    assert max(ratios) > 10
