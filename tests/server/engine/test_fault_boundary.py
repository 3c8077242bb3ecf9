"""Faults stay with the request that causes them, at the cost of few passes."""

import math
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from tidegate_server.engine.admission import Capacity
from tidegate_server.engine.batch import (
    NO_COPIES,
    Batch,
    BlockCopies,
    RequestId,
    RunnerBroken,
    SampledToken,
    ScheduledRequest,
)
from tidegate_server.engine.block_pool import BlockPool
from tidegate_server.engine.fault_boundary import MAX_FAILED_STEPS, FaultBoundary, StepResult, min_blocks_kept
from tidegate_server.engine.faults import FaultKind, OutOfMemory, UnpreparedRequest
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.errors import BadLogits

SAMPLING = SamplingParams(max_tokens=5)


def batch_of(request_ids: Iterable[str]) -> Batch:
    return Batch(
        step=7,
        scheduled=tuple(
            ScheduledRequest(RequestId(request_id), 0, (1,), (1,), SAMPLING, seed=0) for request_id in request_ids
        ),
    )


class FaultyRunner:
    """Fails as it is told to; notes the ids of every pass."""

    def __init__(self, fault: Callable[[list[str]], Exception | None]) -> None:
        self._fault = fault
        self.passes: list[list[str]] = []

    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        ids = [str(share.request_id) for share in batch.scheduled]
        self.passes.append(ids)
        fault = self._fault(ids)
        if fault is not None:
            raise fault
        return tuple(SampledToken(share.request_id, 1) for share in batch.scheduled)

    def copy_blocks(self, copies: BlockCopies) -> BlockCopies:
        return NO_COPIES


class Setup:
    def __init__(
        self, fault: Callable[[list[str]], Exception | None], num_blocks: int = 160, min_blocks: int = 80
    ) -> None:
        self.runner = FaultyRunner(fault)
        self.pool = BlockPool(num_blocks)
        self.faults: Counter[FaultKind] = Counter()
        self.boundary = FaultBoundary(self.runner, self.pool, min_blocks, self.faults)

    def run(self, request_ids: Iterable[str]) -> StepResult:
        return self.boundary.run(batch_of(request_ids))


def fails_with(*culprits: str) -> Callable[[list[str]], Exception | None]:
    return lambda ids: ValueError("no") if set(culprits) & set(ids) else None


def larger_than(num_requests: int) -> Callable[[list[str]], Exception | None]:
    return lambda ids: OutOfMemory("no memory") if len(ids) > num_requests else None


@pytest.mark.parametrize("culprit", [0, 31, 63])
def test_one_bad_request_among_many_is_found_in_a_logarithm_of_passes(culprit: int) -> None:
    ids = [str(number) for number in range(64)]
    setup = Setup(fails_with(ids[culprit]))
    result = setup.run(ids)
    assert result.errors == {ids[culprit]: "ValueError: no"}
    assert [token.request_id for token in result.sampled] == [each for each in ids if each != ids[culprit]]
    assert len(setup.runner.passes) == 1 + 2 * math.log2(64)
    assert setup.faults == {FaultKind.STEP: 6, FaultKind.REQUEST: 1}


def test_several_bad_requests_are_each_told_their_own() -> None:
    setup = Setup(fails_with("b", "e", "f"))
    result = setup.run("abcdefg")
    assert set(result.errors) == {"b", "e", "f"}
    assert [token.request_id for token in result.sampled] == ["a", "c", "d", "g"]


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (UnpreparedRequest(RequestId("c"), "its blocks end"), FaultKind.REQUEST, "UnpreparedRequest: its blocks end"),
        (BadLogits("c", 3), FaultKind.BAD_LOGITS, "the model computed no usable numbers at token 3 of this request"),
    ],
    ids=["while it is prepared", "by its logits"],
)
def test_a_fault_that_names_its_request_costs_one_more_pass(fault: Exception, kind: FaultKind, words: str) -> None:
    setup = Setup(lambda ids: fault if "c" in ids else None)
    result = setup.run("abcdefgh")
    assert result.errors == {"c": words}
    assert setup.runner.passes == [list("abcdefgh"), list("abdefgh")]
    assert setup.faults == {kind: 1}


def test_a_batch_that_runs_out_of_memory_is_tried_again_with_a_smaller_pool() -> None:
    left = [OutOfMemory("no memory")]
    setup = Setup(lambda ids: left.pop() if left else None)
    result = setup.run("abcd")
    assert len(result.sampled) == 4
    assert setup.runner.passes == [list("abcd")] * 2
    assert (setup.pool.num_total, setup.pool.num_free) == (150, 150)
    assert setup.faults == {FaultKind.OUT_OF_MEMORY: 1}


def test_a_batch_that_is_too_large_whatever_the_pool_gives_is_run_in_halves() -> None:
    setup = Setup(larger_than(2))
    result = setup.run("abcd")
    assert [token.request_id for token in result.sampled] == list("abcd")
    assert result.errors == {}
    assert setup.runner.passes == [list("abcd")] * 3 + [list("ab"), list("cd")]
    assert setup.pool.num_total == 160 - 10 - 9


def test_the_pool_keeps_its_least_number_of_blocks_however_often_memory_runs_out() -> None:
    setup = Setup(larger_than(1), num_blocks=100, min_blocks=90)
    for _ in range(5):
        setup.run("ab")
    assert setup.pool.num_total == 90


def test_blocks_that_somebody_holds_are_not_taken() -> None:
    setup = Setup(larger_than(1), num_blocks=20, min_blocks=0)
    setup.pool.take(20)
    assert len(setup.run("ab").sampled) == 2
    assert (setup.pool.num_total, setup.pool.num_live) == (20, 20)


def test_a_request_that_alone_has_no_memory_fails_alone() -> None:
    setup = Setup(lambda ids: OutOfMemory("no memory") if "b" in ids else None)
    assert setup.run("abc").errors == {"b": "OutOfMemory: no memory"}
    assert set(setup.faults) == {FaultKind.OUT_OF_MEMORY}


def test_a_broken_runner_is_not_tried_again() -> None:
    setup = Setup(lambda _: RunnerBroken("the device fell off the bus"))
    with pytest.raises(RunnerBroken, match="fell off the bus"):
        setup.run("ab")
    assert len(setup.runner.passes) == 1


def test_a_pass_of_which_nothing_runs_for_too_many_steps_in_a_row_breaks_the_runner() -> None:
    setup = Setup(lambda _: ValueError("no"))
    for _ in range(MAX_FAILED_STEPS - 1):
        assert set(setup.run("ab").errors) == {"a", "b"}
    with pytest.raises(RunnerBroken, match="in 5 steps in a row, the last with: ValueError: no"):
        setup.run("ab")


@pytest.mark.parametrize(
    ("num_blocks", "max_model_len", "kept"),
    [(100, 160, 50), (100, 4096, 100), (100, 1100, 69), (7, 16, 3), (1, 16, 1)],
    ids=["half", "a request as long as the pool", "the longest request", "half of an odd number", "the only one"],
)
def test_a_pool_keeps_half_and_room_for_the_longest_request(num_blocks: int, max_model_len: int, kept: int) -> None:
    assert min_blocks_kept(Capacity(max_model_len, num_blocks, block_size=16, vocab_size=9)) == kept
