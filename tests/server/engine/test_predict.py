"""Queue delays from numbers alone: a table of situations, each with what it must come to."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.engine.step_times import Machine, decodes, model_of
from tidegate_server.engine.predict import QueueState, RunningRequest, queue_delay_s, retry_after_s, ttft_s
from tidegate_server.engine.step_budget import StepBudget
from tidegate_server.engine.step_time import StepShape, StepTimeModel

MACHINE = Machine()
BUDGET = StepBudget(token_cap=512, time_target=2.0, model=model_of(MACHINE))
IDLE = QueueState(num_available_blocks=1000, num_total_blocks=1000, block_size=16, max_num_running=4)
# All four seats are taken, each with 16 blocks.
FULL = replace(
    IDLE,
    running=tuple(RunningRequest(num_blocks=16, max_tokens_left=left) for left in (40, 10, 30, 20)),
    decodes=decodes(4, 256),
    num_available_blocks=1000 - 64,
)
DECODE_S = MACHINE.seconds(decodes(4, 256))


def test_an_idle_engine_takes_a_request_at_once() -> None:
    assert queue_delay_s(IDLE, 100, BUDGET) == 0.0


def test_with_a_seat_and_blocks_and_nobody_ahead_there_is_no_delay() -> None:
    assert queue_delay_s(replace(FULL, max_num_running=5), 100, BUDGET) == 0.0


@pytest.mark.parametrize(
    ("state", "num_steps"),
    [
        pytest.param(FULL, 10, id="the first of those who run ends"),
        pytest.param(replace(FULL, mean_output_tokens=6), 6, id="requests end sooner than their limits of late"),
        pytest.param(
            replace(FULL, max_num_running=5, num_available_blocks=6 + 4), 10, id="blocks for one more are short by one"
        ),
        pytest.param(
            replace(FULL, max_num_running=5, num_available_blocks=0, mean_output_tokens=15), 10, id="no block is left"
        ),
    ],
)
def test_a_request_waits_until_seats_and_blocks_are_given_back(state: QueueState, num_steps: int) -> None:
    assert queue_delay_s(state, 100, BUDGET) == pytest.approx(num_steps * DECODE_S, rel=0.05)


def test_a_long_prompt_waits_for_more_blocks_than_a_short_one() -> None:
    state = replace(FULL, max_num_running=5, num_available_blocks=10)
    short, longer, longest = (queue_delay_s(state, num_tokens, BUDGET) for num_tokens in (80, 300, 700))
    assert short == 0.0
    assert longer == pytest.approx(10 * DECODE_S, rel=0.05)
    assert longest == pytest.approx(30 * DECODE_S, rel=0.05)


def test_prompts_ahead_are_computed_first_at_the_pace_the_budget_allows() -> None:
    state = replace(FULL, max_num_running=8, num_waiting=1, num_waiting_tokens=400)
    step = state.decodes
    num_per_step = BUDGET.num_prefill_tokens(step, step, start=200)
    expected = 400 / num_per_step * MACHINE.seconds(step.plus(200, num_per_step))
    assert queue_delay_s(state, 100, BUDGET) == pytest.approx(expected, rel=0.05)


def test_a_prompt_that_runs_already_counts_as_well() -> None:
    state = replace(FULL, max_num_running=8)
    waits = queue_delay_s(replace(state, num_waiting=1, num_waiting_tokens=400), 100, BUDGET)
    assert queue_delay_s(replace(state, num_prefill_tokens=400), 100, BUDGET) == pytest.approx(waits)


def test_without_decodes_prompts_go_at_the_full_cap() -> None:
    state = replace(IDLE, num_waiting=2, num_waiting_tokens=1024)
    step = StepShape().plus(256, 512)
    assert queue_delay_s(state, 100, BUDGET) == pytest.approx(2 * MACHINE.seconds(step), rel=0.05)


def test_prompts_are_computed_while_seats_are_waited_for() -> None:
    """The steps that compute the prompt ahead take longer; those that are left until a seat is free do not."""
    state = replace(FULL, num_waiting=1, num_waiting_tokens=20)
    step = state.decodes.plus(10, 16)
    delay_s = queue_delay_s(state, 100, BUDGET)
    assert delay_s < 20 * DECODE_S + 2 * MACHINE.seconds(step)
    assert delay_s > 20 * DECODE_S


def test_a_queue_longer_than_the_seats_moves_as_fast_as_all_seats_end() -> None:
    state = replace(FULL, num_waiting=400, num_waiting_tokens=400, mean_output_tokens=20)
    # 401 requests, 20 tokens each, in four seats; those who run have 10, 20, 20 and 20 tokens left.
    num_steps = (70 + (401 - 4) * 20) / 4
    assert queue_delay_s(state, 1, BUDGET) == pytest.approx(num_steps * DECODE_S, rel=0.05)


def test_a_pool_that_holds_two_at_once_has_two_seats() -> None:
    two_run = replace(FULL, running=FULL.running[:2], decodes=decodes(2, 256), mean_output_tokens=400)
    queued = replace(two_run, num_waiting=100, num_waiting_tokens=100 * 255)
    few = replace(queued, num_total_blocks=40, num_available_blocks=8)
    many = replace(queued, num_total_blocks=1000, num_available_blocks=968)
    assert 1.6 < queue_delay_s(few, 255, BUDGET) / queue_delay_s(many, 255, BUDGET) < 2.1


def test_the_first_token_comes_when_the_prompt_is_computed() -> None:
    state = replace(FULL, max_num_running=5)
    short, long = ttft_s(state, 8, BUDGET), ttft_s(state, 1600, BUDGET)
    assert short == pytest.approx(MACHINE.seconds(state.decodes.plus(4, 8)), rel=0.1)
    assert long > 20 * short
    assert ttft_s(FULL, 8, BUDGET) == pytest.approx(queue_delay_s(FULL, 8, BUDGET) + short)


def test_before_the_first_step_nothing_is_claimed() -> None:
    unknown = replace(BUDGET, model=StepTimeModel())
    assert queue_delay_s(replace(FULL, num_waiting=9, num_waiting_tokens=900), 100, unknown) == 0.0


@given(
    running=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 5000)), max_size=8),
    num_decodes=st.integers(0, 8),
    num_prefill_tokens=st.integers(0, 10**6),
    num_waiting=st.integers(0, 10**5),
    tokens_each=st.integers(1, 4000),
    num_available_blocks=st.integers(0, 1000),
    max_num_running=st.integers(1, 64),
    mean_output_tokens=st.integers(0, 5000),
    num_prompt_tokens=st.integers(1, 10**5),
)
def test_every_state_has_a_finite_delay(
    running: list[tuple[int, int]], num_decodes: int, tokens_each: int, num_prompt_tokens: int, num_waiting: int,
    num_prefill_tokens: int, num_available_blocks: int, max_num_running: int, mean_output_tokens: int,
) -> None:  # fmt: skip
    state = QueueState(
        running=tuple(RunningRequest(*each) for each in running),
        decodes=decodes(num_decodes, 100),
        num_prefill_tokens=num_prefill_tokens,
        num_waiting=num_waiting,
        num_waiting_tokens=num_waiting * tokens_each,
        num_available_blocks=num_available_blocks,
        num_total_blocks=1000,
        block_size=16,
        max_num_running=max_num_running,
        mean_output_tokens=mean_output_tokens,
    )
    assert 0.0 <= queue_delay_s(state, num_prompt_tokens, BUDGET) < math.inf
    assert queue_delay_s(state, num_prompt_tokens, BUDGET) <= ttft_s(state, num_prompt_tokens, BUDGET) < math.inf


@pytest.mark.parametrize(
    ("predicted_s", "told"),
    [(0.0, 1), (0.2, 1), (1.0, 1), (1.01, 2), (59.5, 60), (120.0, 120), (1e9, 120), (math.inf, 120)],
)
def test_a_refused_client_is_told_whole_seconds_up_to_two_minutes(predicted_s: float, told: int) -> None:
    assert retry_after_s(predicted_s) == told
