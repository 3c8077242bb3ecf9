"""A pod as the operator sees it: read from JSON once, typed from there on."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum, auto
from typing import Any

from tidegate_contract import labels
from tidegate_operator.cluster import Manifest


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container's run ended; times are None where Kubernetes did not say."""

    reason: str  # Kubernetes' word, such as Error or OOMKilled
    code: int
    message: str  # the termination message, or the last lines of the log
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def ran_s(self) -> float:
        if self.started_at is None or self.finished_at is None:
            return 0.0
        return (self.finished_at - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True)
class Container:
    """The server container of a pod."""

    waiting_reason: str | None
    waiting_message: str
    has_started: bool  # its startup probe has passed in the present run
    num_restarts: int
    last_exit: Exit | None


class Stage(IntEnum):
    """How far a pod has come on its way to serving."""

    UNSCHEDULED = auto()
    SETTING_UP = auto()  # volumes are mounted, then the network is made
    PULLING = auto()
    LOADING = auto()
    STARTED = auto()


@dataclass(frozen=True, slots=True)
class PodWarning:
    """The newest event that tells why a pod is not set up."""

    reason: str  # Kubernetes' word, such as FailedMount
    message: str


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    uid: str
    ip: str | None
    phase: str
    created_at: datetime
    scheduled_at: datetime | None  # None until it has a node
    is_ready: bool
    ready_changed_at: datetime | None  # when it last became ready or ceased to be
    is_terminating: bool
    template_hash: str  # of the rendering that it was made from
    deletion_cost: int
    unschedulable: str | None  # the scheduler's sentence, while it finds no node
    unschedulable_since: datetime | None
    has_sandbox: bool  # volumes and network are there
    end_reason: str  # why Kubernetes ended the whole pod, such as Evicted
    end_message: str
    container: Container | None  # None until the kubelet reports one
    warning: PodWarning | None = None  # asked for only while the sandbox is long in coming

    @property
    def is_serving(self) -> bool:
        return self.is_ready and not self.is_terminating

    @property
    def is_over(self) -> bool:
        """Ended for good, such as evicted; its ReplicaSet makes another."""
        return self.phase in ("Failed", "Succeeded")

    @property
    def is_present(self) -> bool:
        """It counts as one of the replicas."""
        return not self.is_terminating and not self.is_over

    @property
    def stage(self) -> Stage:
        if self.scheduled_at is None:
            return Stage.UNSCHEDULED
        container = self.container
        if container is None or container.waiting_reason in ("ContainerCreating", "PodInitializing"):
            return Stage.PULLING if self.has_sandbox else Stage.SETTING_UP
        return Stage.STARTED if container.has_started else Stage.LOADING

    def has_been_ready(self, since: datetime) -> bool:
        """Whether it was ready at any time after that, even if it is no longer."""
        return self.is_ready or (self.ready_changed_at is not None and self.ready_changed_at > since)


def decode_pod(manifest: Manifest) -> Pod:
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    annotations = metadata.get("annotations") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    scheduled, ready = conditions.get("PodScheduled", {}), conditions.get("Ready", {})
    is_unschedulable = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        ip=status.get("podIP"),
        phase=status.get("phase", "Pending"),
        created_at=parse_time(metadata["creationTimestamp"]),
        scheduled_at=_changed_at(scheduled) if scheduled.get("status") == "True" else None,
        is_ready=ready.get("status") == "True",
        ready_changed_at=_changed_at(ready),
        is_terminating="deletionTimestamp" in metadata,
        template_hash=annotations.get(labels.TEMPLATE_HASH_ANNOTATION, ""),
        deletion_cost=_deletion_cost(annotations),
        unschedulable=scheduled.get("message", "") if is_unschedulable else None,
        unschedulable_since=_changed_at(scheduled) if is_unschedulable else None,
        has_sandbox=conditions.get("PodReadyToStartContainers", {}).get("status") == "True",
        end_reason=status.get("reason", ""),
        end_message=status.get("message", ""),
        container=_server_container(status.get("containerStatuses") or []),
    )


def parse_time(text: str) -> datetime:
    """A Kubernetes timestamp, always in UTC."""
    return datetime.fromisoformat(text)


def _optional_time(text: str | None) -> datetime | None:
    return None if text is None else parse_time(text)


def _changed_at(condition: dict[str, Any]) -> datetime | None:
    return _optional_time(condition.get("lastTransitionTime"))


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
    return Exit(
        reason=ended.get("reason", "Error"),
        code=ended.get("exitCode", 0),
        message=(ended.get("message") or "").strip(),
        started_at=_optional_time(ended.get("startedAt")),
        finished_at=_optional_time(ended.get("finishedAt")),
    )
