from dataclasses import replace

import pytest

from tests.bench.engine.timed_runner import TimedRunner
from tidegate_bench.engine.long_prompt import Gaps, Intrusion, intrude
from tidegate_server.settings import EngineSettings

SMALL = Intrusion(
    num_decodes=4,
    num_decode_prompt_tokens=16,
    num_settling_steps=8,
    num_undisturbed_steps=5,
    num_prompt_tokens=600,
)
DECODE_STEP_S = 0.010 + 4 * 0.001


def gaps(step_time_target: float, intrusion: Intrusion = SMALL) -> Gaps:
    runner = TimedRunner(num_kv_blocks=intrusion.num_kv_blocks(block_size=16), block_size=16)
    settings = EngineSettings(step_time_target=step_time_target, max_num_batched_tokens=256)
    return intrude(runner, settings, intrusion, 0, runner.clock)


def test_undisturbed_gaps_are_those_of_decodes_alone_before_and_after() -> None:
    assert gaps(2.0).undisturbed_s == pytest.approx([DECODE_STEP_S] * 10)


def test_without_a_target_the_prompt_fills_every_step() -> None:
    found = gaps(0.0)
    assert found.during_s[:2] == pytest.approx([0.010 + 256 * 0.001] * 2)
    assert len(found.during_s) == 3  # 252 of its tokens go beside the decodes


def test_with_a_target_gaps_stay_below_it_and_the_prompt_takes_longer() -> None:
    held, free = gaps(2.0), gaps(0.0)
    assert max(held.during_s) <= 2 * DECODE_STEP_S + 1e-9
    assert len(held.during_s) > len(free.during_s)


def test_the_prompts_first_token_comes_with_the_last_gap() -> None:
    found = gaps(2.0)
    assert found.ttft_s == pytest.approx(sum(found.during_s))


def test_memory_lasts_even_if_the_prompt_gets_one_token_a_step() -> None:
    assert len(gaps(1.0, replace(SMALL, num_prompt_tokens=100)).during_s) == 100
