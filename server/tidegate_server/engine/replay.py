"""Runs a recording again, and finds where it first comes out otherwise.

Two things are tried apart. The schedule is decided anew, by the engine with a runner that draws what was recorded: no
model is needed. The tokens are computed anew, by a model that follows the recorded schedule.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from tidegate_server.engine.batch import (
    Batch,
    BlockCopies,
    LoadedRunner,
    RequestId,
    RunnerBroken,
    SampledToken,
    ScheduledRequest,
)
from tidegate_server.engine.block_pool import BlockPool
from tidegate_server.engine.core import Engine
from tidegate_server.engine.fault_boundary import FaultBoundary, StepResult
from tidegate_server.engine.faults import one_line
from tidegate_server.engine.messages import AddRequest
from tidegate_server.engine.recording import (
    InvalidRecording,
    RecordedResult,
    RecordedShare,
    RecordedStep,
    Recording,
)
from tidegate_server.errors import BadLogits


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that came out otherwise."""

    step: int | None  # None: the step has no number, because it was never scheduled
    request_id: str | None
    what: str

    def __str__(self) -> str:
        where = "a step that was not scheduled" if self.step is None else f"step {self.step}"
        whose = "" if self.request_id is None else f", request {self.request_id}"
        return f"{where}{whose}: {self.what}"


# The schedule.


def schedule_difference(recording: Recording) -> Difference | None:
    """Decide every step anew; None when each batch is the recorded one.

    Args:
        recording: a whole one. What the cache held before the first step of any other is not known.
    """
    assert recording.is_whole
    runner = _ScriptedRunner(recording)
    clock = _ScriptedClock()
    settings = replace(recording.head.settings, record_dir=None)
    engine = Engine(runner, settings, recording.head.model_revision, clock)
    for recorded in recording.steps:
        for each in recorded.commands:
            clock.set(each.at_s)
            engine.apply(each.command)
        clock.set(recorded.began_s, recorded.began_s if recorded.ended_s is None else recorded.ended_s)
        runner.begin(recorded)
        try:
            engine.step()
        except _Diverged as diverged:
            return diverged.difference
        except Exception as error:
            if recorded.ended_s is None:
                return None  # as it did when it was recorded
            return Difference(recorded.step, None, f"now the step fails: {one_line(error)}")
        if recorded.ended_s is None:
            return Difference(recorded.step, None, "when it was recorded the engine failed in it, and now it does not")
        if recorded.scheduled and not runner.was_asked:
            return Difference(recorded.step, recorded.scheduled[0].request_id, "now nothing is scheduled")
        # Memory that ran out is not in the recording, but what it cost is.
        if recorded.kv_blocks_total is not None:
            engine.scheduler.pool.shrink(engine.scheduler.pool.num_total - recorded.kv_blocks_total)
    return None


class _ScriptedClock:
    """Gives the times that it was told, and the last one again."""

    def __init__(self) -> None:
        self._times_s = deque([0.0])

    def set(self, *times_s: float) -> None:
        self._times_s = deque(times_s)

    def __call__(self) -> float:
        return self._times_s.popleft() if len(self._times_s) > 1 else self._times_s[0]


class _Diverged(RunnerBroken):
    """A batch is not the recorded one; of this kind, so that nobody tries it in parts."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference


class _ScriptedRunner:
    """Compares each batch with the recorded one, and draws what was drawn."""

    def __init__(self, recording: Recording) -> None:
        facts = recording.head.runner
        self.max_model_len = facts.max_model_len
        self.lowered_from = None
        self.num_kv_blocks = facts.num_kv_blocks
        self.block_size = facts.block_size
        self.vocab_size = facts.vocab_size
        self.eos_token_ids = facts.eos_token_ids
        self.device = facts.device
        self.dtype = facts.dtype
        self.kernels = facts.kernels
        self.num_host_blocks = facts.num_host_blocks
        self.block_bytes = facts.block_bytes
        self.swap_bytes_per_s = facts.swap_bytes_per_s
        self.exactness = None
        self.was_asked = False  # in this step

    def begin(self, recorded: RecordedStep) -> None:
        self._recorded = recorded
        self._results = _results_by_id(recorded)
        self.was_asked = False

    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        if not self.was_asked:
            self.was_asked = True
            difference = _batch_difference(self._recorded, batch)
            if difference is not None:
                raise _Diverged(difference)
        if self._recorded.ended_s is None:
            raise RunnerBroken("the recorded engine failed in this step")
        return tuple(self._draw(share) for share in batch.scheduled if share.sampling is not None)

    def copy_blocks(self, copies: BlockCopies) -> BlockCopies:
        return self._recorded.failed_copies

    def _draw(self, share: ScheduledRequest) -> SampledToken:
        result = self._results.get(share.request_id)
        if result is None or not result.token_ids:
            # Whatever it was that failed: this error names the request, and no number of them ends the engine.
            raise BadLogits(share.request_id, share.stop)
        return SampledToken(share.request_id, result.token_ids[0])


def _batch_difference(recorded: RecordedStep, batch: Batch) -> Difference | None:
    for was, share in zip_longest(recorded.scheduled, batch.scheduled):
        now = None
        if share is not None:
            now = RecordedShare(share.request_id, share.start, share.num_new_tokens, share.seed)
        if was != now:
            request_id = was.request_id if was is not None else now.request_id if now is not None else None
            return Difference(recorded.step, request_id, f"recorded was {_in_words(was)}, now it is {_in_words(now)}")
    if recorded.preempted != batch.preempted:
        what = f"recorded as preempted were {list(recorded.preempted)}, now it is {list(batch.preempted)}"
        return Difference(recorded.step, None, what)
    return None


def _in_words(share: RecordedShare | None) -> str:
    if share is None:
        return "nothing"
    return f"{share.num_tokens} tokens of {share.request_id} from position {share.start} on with seed {share.seed}"


# The tokens.


def token_difference(recording: Recording, runner: LoadedRunner) -> Difference | None:
    """Compute every step anew; None when each request drew its recorded tokens, or failed where it did.

    A request that does not begin with its first token (it found a prefix, or the recording begins in its middle) has
    its earlier tokens computed first, in batches of its own.

    Args:
        runner: with at least `num_blocks_needed` blocks.

    Raises:
        InvalidRecording: a step is about a request or about tokens that nobody knows.
    """
    return _TokenReplay(recording, runner).difference()


def num_blocks_needed(recording: Recording, block_size: int) -> int:
    """Blocks that the largest step needs when no request shares any."""
    return max(
        (sum(-(-(s.start + s.num_tokens) // block_size) for s in step.scheduled) for step in recording.steps), default=0
    )


@dataclass(slots=True)
class _Replayed:
    command: AddRequest
    token_ids: list[int]
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)


class _TokenReplay:
    def __init__(self, recording: Recording, runner: LoadedRunner) -> None:
        self._recording = recording
        self._runner = runner
        self._pool = BlockPool(runner.num_kv_blocks)
        self._boundary = FaultBoundary(runner, self._pool, self._pool.num_total, Counter())
        self._requests: OrderedDict[str, _Replayed] = OrderedDict()  # the one scheduled last at the end

    def difference(self) -> Difference | None:
        for known in self._recording.head.known:
            self._add(known.command, known.output_token_ids)
        for recorded in self._recording.steps:
            for each in recorded.commands:
                if isinstance(each.command, AddRequest):
                    self._add(each.command, ())
            difference = self._step(recorded) if recorded.scheduled else None
            if difference is not None:
                return difference
            self._take_in(recorded)
        return None

    def _add(self, command: AddRequest, output_token_ids: tuple[int, ...]) -> None:
        self._requests[command.request_id] = _Replayed(command, [*command.prompt_token_ids, *output_token_ids])

    def _step(self, recorded: RecordedStep) -> Difference | None:
        assert recorded.step is not None, "a step without a number has no schedule"
        for share in recorded.scheduled:
            if share.request_id not in self._requests:
                raise InvalidRecording(f"step {recorded.step}: nothing is known of request {share.request_id}")
            self._requests.move_to_end(share.request_id)
        batch = Batch(recorded.step, tuple(self._prepared(share, recorded) for share in recorded.scheduled))
        try:
            result = self._boundary.run(batch)
        except RunnerBroken as broken:
            return None if recorded.ended_s is None else Difference(recorded.step, None, f"now it fails: {broken}")
        if recorded.ended_s is None:
            return Difference(recorded.step, None, "when it was recorded the engine failed in it, and now it does not")
        return _result_difference(recorded, result)

    def _prepared(self, share: RecordedShare, recorded: RecordedStep) -> ScheduledRequest:
        request = self._requests[share.request_id]
        stop = share.start + share.num_tokens
        if stop > len(request.token_ids):
            raise InvalidRecording(f"step {recorded.step}: request {share.request_id} has no token {stop - 1} yet")
        if share.start < request.num_computed_tokens:
            self._drop(request)  # it was preempted
        self._hold(request, stop, {each.request_id for each in recorded.scheduled})
        most = self._recording.head.settings.max_num_batched_tokens
        while request.num_computed_tokens < share.start:
            earlier = self._share(request, min(share.start, request.num_computed_tokens + most), share.seed)
            self._runner.run(Batch(step=0, scheduled=(earlier,)))
        return self._share(request, stop, share.seed)

    def _share(self, request: _Replayed, stop: int, seed: int) -> ScheduledRequest:
        """The request's tokens up to `stop`, counted as computed from now on."""
        start, request.num_computed_tokens = request.num_computed_tokens, stop
        is_last = stop == len(request.token_ids)
        return ScheduledRequest(
            request_id=RequestId(request.command.request_id),
            start=start,
            token_ids=request.token_ids[start:stop],
            block_table=request.block_table,
            sampling=request.command.sampling if is_last else None,
            seed=seed,
            num_output_tokens=len(request.token_ids) - len(request.command.prompt_token_ids),
        )

    def _hold(self, request: _Replayed, stop: int, scheduled: set[str]) -> None:
        """Blocks for the tokens up to `stop`, at the cost of requests that are not in this step if need be."""
        num_more = max(0, -(-stop // self._runner.block_size) - len(request.block_table))
        for request_id, other in self._requests.items():
            if num_more <= self._pool.num_available:
                break
            if request_id not in scheduled:
                self._drop(other)
        request.block_table += self._pool.take(num_more)

    def _drop(self, request: _Replayed) -> None:
        self._pool.release(request.block_table)
        request.block_table = []
        request.num_computed_tokens = 0

    def _take_in(self, recorded: RecordedStep) -> None:
        for result in recorded.results:
            request = self._requests.get(result.request_id)
            if request is None:
                continue  # it failed before it was taken in
            request.token_ids.extend(result.token_ids)
            if result.finish_reason is not None:
                self._drop(request)
                del self._requests[result.request_id]


def _result_difference(recorded: RecordedStep, result: StepResult) -> Difference | None:
    results = _results_by_id(recorded)
    token_of = {token.request_id: token.token_id for token in result.sampled}
    for share in recorded.scheduled:
        was = results.get(share.request_id)
        error, token_id = result.errors.get(share.request_id), token_of.get(RequestId(share.request_id))
        what = None
        if error is not None:
            what = None if was is not None and was.error is not None else f"now it fails: {error}"
        elif was is not None and was.error is not None:
            what = f"recorded was its failure ({was.error}), now it does not fail"
        elif was is not None and token_id is not None and was.token_ids != (token_id,):
            what = f"recorded was token {was.token_ids[0] if was.token_ids else None}, now it is {token_id}"
        if what is not None:
            return Difference(recorded.step, share.request_id, what)
    return None


def _results_by_id(recorded: RecordedStep) -> Mapping[str, RecordedResult]:
    return {result.request_id: result for result in recorded.results}
