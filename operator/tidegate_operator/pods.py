"""A pod as the operator sees it: read from JSON once, typed from there on."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidegate_contract import labels
from tidegate_operator.cluster import Manifest


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container's run ended."""

    reason: str  # Kubernetes' word, such as Error or OOMKilled
    code: int
    message: str  # the termination message, or the last lines of the log
    ran_s: float | None  # None where Kubernetes did not say
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Container:
    """The server container of a pod."""

    waiting_reason: str | None
    waiting_message: str
    has_started: bool  # its startup probe has passed in the present run
    num_restarts: int
    last_exit: Exit | None


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    uid: str
    ip: str | None
    phase: str
    created_at: datetime
    is_ready: bool
    is_terminating: bool
    revision: str  # the pod-template-hash that its ReplicaSet gave it
    deletion_cost: int
    unschedulable: str | None  # the scheduler's sentence, while it finds no node
    unschedulable_since: datetime | None
    container: Container | None  # None until the kubelet reports one

    @property
    def is_serving(self) -> bool:
        return self.is_ready and not self.is_terminating

    @property
    def is_over(self) -> bool:
        """Ended for good, such as evicted; its ReplicaSet makes another."""
        return self.phase in ("Failed", "Succeeded")


def decode_pod(manifest: Manifest) -> Pod:
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled", {})
    is_unschedulable = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        ip=status.get("podIP"),
        phase=status.get("phase", "Pending"),
        created_at=parse_time(metadata["creationTimestamp"]),
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        is_terminating="deletionTimestamp" in metadata,
        revision=(metadata.get("labels") or {}).get("pod-template-hash", ""),
        deletion_cost=_deletion_cost(metadata.get("annotations") or {}),
        unschedulable=scheduled.get("message", "") if is_unschedulable else None,
        unschedulable_since=_optional_time(scheduled.get("lastTransitionTime")) if is_unschedulable else None,
        container=_server_container(status.get("containerStatuses") or []),
    )


def parse_time(text: str) -> datetime:
    """A Kubernetes timestamp, always in UTC."""
    return datetime.fromisoformat(text)


def _optional_time(text: str | None) -> datetime | None:
    return None if text is None else parse_time(text)


def _deletion_cost(annotations: dict[str, str]) -> int:
    try:
        return int(annotations.get(labels.POD_DELETION_COST_ANNOTATION, "0"))
    except ValueError:
        return 0


def _server_container(statuses: Iterable[dict[str, Any]]) -> Container | None:
    status = next((status for status in statuses if status["name"] == labels.SERVER_CONTAINER), None)
    if status is None:
        return None
    state, last_state = status.get("state") or {}, status.get("lastState") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or last_state.get("terminated")
    return Container(
        waiting_reason=waiting.get("reason"),
        waiting_message=waiting.get("message", ""),
        has_started=bool(status.get("started")),
        num_restarts=status.get("restartCount", 0),
        last_exit=None if ended is None else _exit(ended),
    )


def _exit(ended: dict[str, Any]) -> Exit:
    started_at, finished_at = _optional_time(ended.get("startedAt")), _optional_time(ended.get("finishedAt"))
    ran_s = (finished_at - started_at).total_seconds() if started_at and finished_at else None
    return Exit(
        reason=ended.get("reason", "Error"),
        code=ended.get("exitCode", 0),
        message=(ended.get("message") or "").strip(),
        ran_s=ran_s,
        at=finished_at,
    )
