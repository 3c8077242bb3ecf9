"""Whole steps that give a request something else in company."""

from dataclasses import dataclass, replace

import pytest

from tests.server.engine.counting_runner import CountingRunner
from tidegate_server.engine.batch import Batch, SampledToken
from tidegate_server.errors import BadLogits
from tidegate_server.model.step_probe import STEP, find_step_difference, num_blocks_of_steps


@dataclass
class CrowdedRunner(CountingRunner):
    """Gives a request with mates another log-probability."""

    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        drawn = super().run(batch)
        return tuple(replace(token, logprob=-0.5 - 2.0**-23 * (len(drawn) - 1)) for token in drawn)


@dataclass
class NanRunner(CountingRunner):
    """Has no numbers to draw from."""

    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        raise BadLogits(batch.scheduled[0].request_id, 1)


@pytest.mark.parametrize("block_size", [1, 2, 16])
@pytest.mark.parametrize("max_model_len", [1, 2, 256])
def test_a_runner_that_cares_for_nobody_else_shows_no_difference(block_size: int, max_model_len: int) -> None:
    runner = CountingRunner(
        num_kv_blocks=num_blocks_of_steps(block_size), block_size=block_size, max_model_len=max_model_len, mixes=True
    )
    assert find_step_difference(runner) is None
    company, alone = runner.batches
    assert len(company.scheduled) > len(alone.scheduled) == 1
    assert all(share.stop <= max_model_len for batch in runner.batches for share in batch.scheduled)


def test_the_last_bit_of_a_log_probability_is_seen() -> None:
    difference = find_step_difference(CrowdedRunner())
    assert difference is not None
    assert difference.op == STEP


def test_a_model_without_numbers_is_told_rather_than_raised() -> None:
    difference = find_step_difference(NanRunner())
    assert difference is not None
    assert "no usable numbers" in difference.how
