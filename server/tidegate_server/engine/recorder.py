"""Keeps the inputs and results of the last steps, so that a run can be replayed from them."""

import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from tidegate_server.engine.batch import Batch, BlockCopies
from tidegate_server.engine.messages import AbortRequest, AddRequest, RequestOutput
from tidegate_server.engine.recording import (
    KnownRequest,
    RecordedCommand,
    RecordedResult,
    RecordedShare,
    RecordedStep,
    Recording,
    RecordingHead,
)


@dataclass(slots=True)
class _Known:
    """A request that is unfinished before the oldest step kept."""

    command: AddRequest
    output_token_ids: list[int] = field(default_factory=list)


class Recorder:
    """A ring of steps. A step costs a few tuples for each of its requests, and nothing for each of its tokens.

    Steps that leave the ring are applied to the requests known before it, so that the ring can always be replayed: what
    those requests hold in the cache is computed anew from their tokens.

    The calls of one step are `begin`, `scheduled`, perhaps `copies_failed`, and `end`; without `begin`, as when the
    engine is idle, the others do nothing.

    Args:
        max_steps: 0 records nothing.
    """

    def __init__(self, max_steps: int) -> None:
        self._max_steps = max_steps
        self._salt_key = secrets.token_bytes(32)
        self._steps: deque[RecordedStep] = deque()
        self._num_forgotten = 0
        self._known: dict[str, _Known] = {}
        self._commands: list[RecordedCommand] = []  # since the last step
        self._step: RecordedStep | None = None  # that has begun and not ended

    def arrived(self, command: AddRequest | AbortRequest, at_s: float) -> None:
        """A command that changed something; refused ones did not."""
        if self._max_steps:
            self._commands.append(RecordedCommand(at_s, self._without_secrets(command)))

    def begin(self, at_s: float) -> None:
        if self._max_steps:
            self._step = RecordedStep(began_s=at_s, commands=tuple(self._commands))
            self._commands.clear()

    def scheduled(self, batch: Batch) -> None:
        if self._step is not None:
            self._step = msgspec.structs.replace(
                self._step,
                step=batch.step,
                scheduled=tuple(
                    RecordedShare(share.request_id, share.start, share.num_new_tokens, share.seed)
                    for share in batch.scheduled
                ),
                preempted=batch.preempted,
            )

    def copies_failed(self, failed: BlockCopies, left: Batch) -> None:
        """What is left of the batch is what ran."""
        if self._step is not None:
            self._step = msgspec.structs.replace(self._step, failed_copies=failed)
            self.scheduled(left)

    def end(self, outputs: Sequence[RequestOutput], at_s: float, kv_blocks_total: int) -> None:
        if self._step is None:
            return
        results = tuple(
            RecordedResult(output.request_id, output.token_ids, output.finish_reason, output.error)
            for output in outputs
            if not output.refused
        )
        self._steps.append(
            msgspec.structs.replace(self._step, results=results, ended_s=at_s, kv_blocks_total=kv_blocks_total)
        )
        self._step = None
        if len(self._steps) > self._max_steps:
            self._forget(self._steps.popleft())

    def recording(self, head: RecordingHead, because: str) -> Recording:
        """Everything kept, the step that runs included.

        Args:
            head: says what runs; gets why this is written, and where the engine stood before the first step.
        """
        known = tuple(
            KnownRequest(command=each.command, output_token_ids=tuple(each.output_token_ids))
            for each in self._known.values()
        )
        head = msgspec.structs.replace(head, because=because, num_steps_forgotten=self._num_forgotten, known=known)
        running = () if self._step is None else (self._step,)
        return Recording(head, (*self._steps, *running))

    def _without_secrets(self, command: AddRequest | AbortRequest) -> AddRequest | AbortRequest:
        """The same, but with a name for its salt that tells it from others."""
        if isinstance(command, AbortRequest) or not command.cache_salt:
            return command
        digest = blake2b(command.cache_salt.encode(), digest_size=8, key=self._salt_key)
        return msgspec.structs.replace(command, cache_salt=digest.hexdigest())

    def _forget(self, step: RecordedStep) -> None:
        self._num_forgotten += 1
        for recorded in step.commands:
            if isinstance(recorded.command, AddRequest):
                self._known[recorded.command.request_id] = _Known(recorded.command)
        for result in step.results:
            if result.finish_reason is not None:
                self._known.pop(result.request_id, None)  # None: it failed before it was taken in
            elif result.token_ids:
                self._known[result.request_id].output_token_ids.extend(result.token_ids)
