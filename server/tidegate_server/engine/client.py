"""The async side of the engine: submit, stream, abort, and know when it is gone."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self, assert_never

import structlog

from tidegate_contract.admin import ServerState
from tidegate_server.engine.admission import Capacity, refusal
from tidegate_server.engine.launch import RunnerFactory
from tidegate_server.engine.link import EngineLink
from tidegate_server.engine.messages import (
    AbortRequest,
    AddRequest,
    AuditBlocks,
    EngineFailed,
    EngineMessage,
    EngineReady,
    EngineStopped,
    StepOutput,
    WriteRecording,
)
from tidegate_server.engine.predict import retry_after_s
from tidegate_server.engine.process import ProcessLink
from tidegate_server.engine.request_stream import Inbox, RequestStream
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.engine.snapshot import EngineSnapshot
from tidegate_server.errors import EngineError, InvalidRequest, InvalidSetting, Overloaded, RequestError, StartError
from tidegate_server.model_source import ModelFiles
from tidegate_server.settings import EngineSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

StepCallback = Callable[[StepOutput], None]


class EngineClient:
    """One engine as the API sees it. Made and used on one running event loop; `snapshot` from any thread.

    Attributes:
        failed: set when the engine is gone without having been asked to; every open stream then ends with an error.
        failure: why, once `failed` is set.
    """

    def __init__(self, link: EngineLink) -> None:
        self._link = link
        self._inboxes: dict[str, Inbox] = {}
        self._callbacks: list[StepCallback] = []
        self._facts: EngineReady | None = None
        self._capacity: Capacity | None = None
        self._started = asyncio.Event()  # ready, or failed before
        self._is_stopping = False
        self.failed = asyncio.Event()
        self.failure: EngineFailed | None = None
        link.start(self._on_message, self._on_exit)

    @classmethod
    def start(
        cls,
        settings: EngineSettings,
        files: ModelFiles,
        *,
        load_runner: RunnerFactory | None = None,
        configure_logging: Callable[[], None] | None = None,
    ) -> Self:
        """Spawn an engine process; `ready` waits for its model.

        Args:
            load_runner: makes the runner, in the engine process; None: the model's own.
            configure_logging: called first in the engine process; like `load_runner` it must be picklable.
        """
        return cls(ProcessLink(settings, files, load_runner, configure_logging))

    async def ready(self) -> EngineReady:
        """Wait until the model is loaded.

        Raises:
            InvalidSetting: a setting does not fit the model or the machine.
            StartError: it could not be; `code` is the engine's own.
        """
        await self._started.wait()
        if self.failure is not None and self._facts is None:
            raise _start_error(self.failure)
        if self._facts is None:
            raise StartError("the engine was shut down before its model was loaded")
        return self._facts

    @property
    def num_open(self) -> int:
        """Requests that were submitted and of which the engine has not said its last word."""
        return len(self._inboxes)

    def submit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        deadline_s: float | None = None,
        leader_id: str = "",
    ) -> RequestStream:
        """Hand a request to the engine, at once; its outputs come by iterating.

        Args:
            leader_id: of a request with the same prompt, submitted before; the prompt is computed once for both.
            tenant: whose share of the engine the request counts against.
            deadline_s: CLOCK_MONOTONIC; a request that was not begun by then ends with `DeadlineExceeded`.

        Raises:
            InvalidRequest: it can never run; the message says what to change.
            Overloaded: the engine is still loading, shutting down, or gone.
        """
        if self.failure is not None:
            raise _engine_gone(self.failure)
        if self._is_stopping:
            raise Overloaded("The engine of this server has stopped; send the request again.", code="draining")
        if self._capacity is None:
            raise Overloaded("The model is still loading; try again in a moment.", code="starting")
        problem = refusal(prompt_token_ids, sampling, self._capacity)
        if problem is not None:
            raise InvalidRequest(problem)
        if request_id in self._inboxes:
            raise InvalidRequest(f"A request with the id {request_id} is running already; give each request its own.")
        self._link.send(
            AddRequest(
                request_id=request_id,
                prompt_token_ids=list(prompt_token_ids),
                sampling=sampling,
                arrival_s=time.monotonic(),
                priority=priority,
                cache_salt=cache_salt,
                tenant=tenant,
                deadline_s=deadline_s,
                leader_id=leader_id,
            )
        )
        inbox = self._inboxes[request_id] = Inbox(request_id)
        return RequestStream(inbox, self._on_leave, self._retry_after_s)

    def abort(self, request_id: str) -> None:
        """End a request; its stream gets a last output with `abort`. Unknown and finished ones are ignored."""
        self._link.send(AbortRequest(request_id=request_id))

    def write_recording(self, path: str) -> None:
        """Have the engine write its last steps to a file, once the step that runs is done."""
        self._link.send(WriteRecording(path=path))

    def audit(self) -> None:
        """Have the engine recount its KV blocks; the log and the metrics tell what it finds."""
        self._link.send(AuditBlocks())

    def subscribe(self, callback: StepCallback) -> Callable[[], None]:
        """Call back with every step's output, before any stream sees it; gives what ends the subscription."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def snapshot(self) -> EngineSnapshot:
        """The engine's state in numbers; from any thread, never waits."""
        snapshot = self._link.snapshot()
        return replace(snapshot, state=ServerState.FAILED) if self.failure is not None else snapshot

    def give_up(self, why: str) -> None:
        """Count an engine that runs but does nothing as failed: open requests end with an error."""
        self._fail(EngineFailed(reason=why, code="EngineStalled"))

    async def shutdown(self, timeout_s: float = 10.0) -> None:
        """End the engine, by force after `timeout_s`; open requests end with `abort`. Twice is harmless."""
        self._is_stopping = True
        await self._link.close(timeout_s)

    def _on_message(self, message: EngineMessage) -> None:
        match message:
            case StepOutput():
                self._deliver(message)
            case EngineReady():
                self._facts = message
                self._capacity = Capacity(
                    max_model_len=message.max_model_len,
                    num_kv_blocks=message.num_kv_blocks,
                    block_size=message.block_size,
                    vocab_size=message.vocab_size,
                )
                self._started.set()
            case EngineFailed():
                self._fail(message)
            case EngineStopped():
                pass  # the exit that follows is told by the link
            case _:
                assert_never(message)

    def _on_exit(self, how: str) -> None:
        if self._is_stopping:
            self._end_streams(lambda: EngineError(f"the server shut down: {how}"))
            self._started.set()
        else:
            self._fail(EngineFailed(reason=how, code="EngineCrashed"))

    def _fail(self, failure: EngineFailed) -> None:
        if self.failure is not None:
            return  # the first reason is the nearest to the cause
        self.failure = failure
        if self._facts is not None:  # else `ready` raises it, and nobody had a request here
            log.error("engine_gone", code=failure.code, reason=failure.reason, next="open requests fail")
        self._end_streams(lambda: _engine_gone(failure))
        self._started.set()
        self.failed.set()

    def _end_streams(self, error: Callable[[], RequestError]) -> None:
        inboxes, self._inboxes = self._inboxes, {}
        for inbox in inboxes.values():
            inbox.put(error())

    def _deliver(self, step: StepOutput) -> None:
        for callback in tuple(self._callbacks):
            try:
                callback(step)
            except Exception:
                log.exception("step_callback_failed", step=step.step, next="the streams go on")
        for output in step.outputs:
            inbox = self._inboxes.get(output.request_id)
            if inbox is None:
                continue  # its stream ended when the engine was given up
            inbox.put(output)
            if output.finish_reason is not None:
                del self._inboxes[output.request_id]

    def _retry_after_s(self) -> int:
        """When a request that found the queue full should come again."""
        return retry_after_s(self.snapshot().queue_delay_predicted_s)

    def _on_leave(self, inbox: Inbox) -> None:
        # The inbox stays until the engine's last word on the request, so that no other can take its id before.
        if not inbox.is_complete:
            self._link.send(AbortRequest(request_id=inbox.request_id))
            inbox.close()


def _engine_gone(failure: EngineFailed) -> Overloaded:
    """What requests are told, those inside and those that still come: another pod may have an engine."""
    return Overloaded(
        f"the engine of this server stopped: {failure.reason}; send the request again", code="engine_failed"
    )


def _start_error(failure: EngineFailed) -> StartError:
    """What the engine process raised, as it was before it crossed over."""
    if failure.flag is not None:
        return InvalidSetting(failure.flag, failure.reason)
    error = StartError(failure.reason)
    error.code = failure.code
    return error
