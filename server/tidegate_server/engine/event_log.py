"""The engine's own record of what it decided and why: bounded, in order, with step numbers and times."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import structlog

from tidegate_server.engine.batch import RequestId

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_EVENTS: Final = 8192  # about 2 MB


class EventKind(StrEnum):
    """What happened; the values are the names in the log."""

    ARRIVED = "request_arrived"
    REFUSED = "request_refused"
    ADMITTED = "request_admitted"  # it got blocks and is part of the step; after a preemption too
    STALLED = "request_stalled"  # it keeps its blocks and waits for one more that nobody later can give
    PREEMPTED = "request_preempted"
    TRIMMED = "request_trimmed"  # it was waiting with its first blocks, and has lost some of them
    AGED = "request_aged"  # it has waited so long that it goes before every priority
    COPY_FAILED = "copy_failed"
    FIRST_TOKEN = "request_first_token"
    FINISHED = "request_finished"
    ABORTED = "request_aborted"
    EXPIRED = "request_expired"  # its deadline passed while it waited
    FAILED = "request_failed"
    STALE_RESULT = "stale_result_dropped"
    STEP = "step"  # kept here, not logged: once per step is once per token


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """One thing that happened; `num_tokens` are the ones it is about: prompt, output, or computed by the step."""

    kind: EventKind
    step: int
    at_s: float
    request_id: RequestId | None = None
    reason: str = ""
    num_tokens: int = 0


class EventLog:
    """The last `max_events` events; all but the steps also go to the log at debug."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._events: deque[EngineEvent] = deque(maxlen=max_events)

    def __iter__(self) -> Iterator[EngineEvent]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def record(self, event: EngineEvent) -> None:
        self._events.append(event)
        if event.kind is not EventKind.STEP:
            log.debug(
                event.kind.value,
                step=event.step,
                at_s=event.at_s,
                request_id=event.request_id,
                reason=event.reason,
                num_tokens=event.num_tokens,
            )

    def of(self, kind: EventKind, request_id: str | None = None) -> list[EngineEvent]:
        """The events of one kind, of one request or of all."""
        return [e for e in self._events if e.kind is kind and (request_id is None or e.request_id == request_id)]
