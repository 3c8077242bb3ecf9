"""Runs a batch such that a fault stays with the request that causes it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import structlog

from tidegate_server.engine.admission import Capacity
from tidegate_server.engine.batch import Batch, RequestId, Runner, RunnerBroken, SampledToken, ScheduledRequest
from tidegate_server.engine.block_pool import NULL_BLOCK, BlockPool
from tidegate_server.engine.faults import FaultKind, OutOfMemory, UnpreparedRequest, one_line
from tidegate_server.errors import BadLogits

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# So many times in one step the pool shrinks and the batch is tried again as it is; after that it is halved.
MAX_SHRINKS_PER_STEP: Final = 2
# Of the pool, for one shrink.
SHRINK_SHARE: Final = 1 / 16

# So many steps in a row in which nothing could be run: it may be the engine's fault, not the requests'.
MAX_FAILED_STEPS: Final = 5

# A token for the null block, of nobody.
_PROBE: Final = Batch(
    step=0, scheduled=(ScheduledRequest(RequestId("probe"), 0, (0,), (NULL_BLOCK,), sampling=None, seed=0),)
)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a batch gave: tokens of the requests that draw, and of those that could not be computed why, in words."""

    sampled: tuple[SampledToken, ...]
    errors: dict[str, str]  # by request id


class FaultBoundary:
    """Tries a batch whole; what fails is tried in parts until each fault stands alone.

    A fault that names its request costs one more pass, of all the others. For any other the batch is halved, and each
    half that fails again: with one bad request among n, about 2 log2(n) more passes. Running a request's share again
    writes the same values to the same slots, so what a failed try left is harmless.

    When memory runs out, the pool gives blocks up first. That frees no memory now, but the blocks that are left hold
    fewer requests at once, so that the coming steps are smaller.

    Args:
        min_blocks: the pool keeps so many.
        faults: counted here, by kind: each pass that failed, once.
    """

    def __init__(self, runner: Runner, pool: BlockPool, min_blocks: int, faults: Counter[FaultKind]) -> None:
        self._runner = runner
        self._pool = pool
        self._min_blocks = min_blocks
        self._faults = faults
        self._num_shrinks = 0  # in this step
        self._num_failed_steps = 0  # in a row

    def run(self, batch: Batch) -> StepResult:
        """Run a batch that is not empty.

        Raises:
            RunnerBroken: the runner said so, or several steps in a row could run none of their requests, nor anything.
        """
        self._num_shrinks = 0
        sampled: list[SampledToken] = []
        errors: dict[str, str] = {}
        has_run = False
        parts = [batch.scheduled]  # still to be run, the first of them last
        while parts:
            part = parts.pop()
            try:
                sampled.extend(self._run_checked(replace(batch, scheduled=part)))
                has_run = True
                continue
            except RunnerBroken:
                raise
            except Exception as error:
                fault = _Fault.of(error, part)
                _log_fault(fault, error, batch.step, len(part))
            # Out of the `except`: the frames of the error held the tensors whose memory the next try needs.
            self._faults[fault.kind] += 1
            # Bad logits are what a forward pass gave: it ran, and a prompt that the model overflows on, sent again and
            # again, must not end the engine for everybody.
            has_run = has_run or fault.kind is FaultKind.BAD_LOGITS
            if fault.kind is FaultKind.OUT_OF_MEMORY and self._shrink_pool(batch.step):
                parts.append(part)
            elif fault.culprit is None:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            else:
                errors[fault.culprit] = fault.words
                rest = tuple(share for share in part if share.request_id != fault.culprit)
                parts += [rest] if rest else []
        self._check_progress(has_run, errors)
        return StepResult(tuple(sampled), errors)

    def _run_checked(self, batch: Batch) -> Sequence[SampledToken]:
        sampled = self._runner.run(batch)
        wanted = [share.request_id for share in batch.scheduled if share.sampling is not None]
        given = [token.request_id for token in sampled]
        if given != wanted:
            raise RuntimeError(f"the runner drew tokens for {given} instead of {wanted}")
        return sampled

    def _shrink_pool(self, step: int) -> bool:
        """Take blocks out of service; False when there were enough tries, or no block can be spared."""
        if self._num_shrinks == MAX_SHRINKS_PER_STEP:
            return False
        num_spare = self._pool.num_total - self._min_blocks
        num_lost = self._pool.shrink(min(num_spare, max(1, round(self._pool.num_total * SHRINK_SHARE))))
        if num_lost == 0:
            return False
        self._num_shrinks += 1
        log.warning(
            "kv_pool_shrunk",
            step=step,
            num_lost=num_lost,
            num_total=self._pool.num_total,
            because="a forward pass ran out of memory",
            next="it is tried again; until a restart fewer requests run at once",
        )
        return True

    def _check_progress(self, has_run: bool, errors: dict[str, str]) -> None:
        if has_run:
            self._num_failed_steps = 0
            return
        self._num_failed_steps += 1
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            last = next(reversed(errors.values()))
            self._probe(f"every request failed in {MAX_FAILED_STEPS} steps in a row, the last with: {last}")
            self._num_failed_steps = 0

    def _probe(self, because: str) -> None:
        """Run what cannot be bad: a prompt that fails, sent again and again, must not end the engine for everybody."""
        try:
            self._runner.run(_PROBE)
        except Exception as error:
            raise RunnerBroken(because) from error
        log.warning("runner_sound", because=because, next="it is the requests' fault, and each client is told")


def min_blocks_kept(capacity: Capacity) -> int:
    """How many blocks a pool keeps, however often memory runs out: half, and enough for the longest request."""
    longest = -(-capacity.max_total_tokens // capacity.block_size)
    return max(capacity.num_kv_blocks // 2, longest)


@dataclass(frozen=True, slots=True)
class _Fault:
    """What one failed pass tells."""

    kind: FaultKind
    culprit: RequestId | None  # the one request that is to blame; None while that is open
    words: str  # for its client

    @classmethod
    def of(cls, error: Exception, part: Sequence[ScheduledRequest]) -> Self:
        culprit = _culprit(error, part)
        match error:
            case BadLogits():
                return cls(FaultKind.BAD_LOGITS, culprit, error.message)
            case OutOfMemory():
                return cls(FaultKind.OUT_OF_MEMORY, culprit, one_line(error))
            case _:
                return cls(FaultKind.STEP if culprit is None else FaultKind.REQUEST, culprit, one_line(error))


def _culprit(error: Exception, part: Sequence[ScheduledRequest]) -> RequestId | None:
    if len(part) == 1:
        return part[0].request_id
    if isinstance(error, BadLogits | UnpreparedRequest):
        return next((share.request_id for share in part if share.request_id == error.request_id), None)
    return None


def _log_fault(fault: _Fault, error: Exception, step: int, num_requests: int) -> None:
    """In one line while it is not known whose fault it is, then in full."""
    if fault.culprit is None:
        log.warning(
            "step_failed",
            step=step,
            num_requests=num_requests,
            error=one_line(error),
            next="its requests run again, in parts",
        )
    else:
        log.error(
            "request_failed", step=step, request_id=fault.culprit, next="its client gets the error", exc_info=error
        )
