"""Small builders for the operator's tests: a resource, a pod, a sample, with only what a test cares about."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tidegate_contract import labels
from tidegate_contract.admin import LoadReport, ServerState
from tidegate_operator.cluster import Manifest
from tidegate_operator.demand import Sample
from tidegate_operator.platform import Platform
from tidegate_operator.pods import Container, Exit, Pod
from tidegate_operator.resource import InferenceService, decode_resource

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
PLATFORM = Platform(server_image="tidegate/server:1", renderer_version="1")


def resource_manifest(**spec: Any) -> Manifest:
    return {
        "apiVersion": f"{labels.GROUP}/{labels.VERSION}",
        "kind": labels.KIND,
        "metadata": {"name": "chat", "namespace": "demo", "uid": "owner-uid", "generation": 1},
        "spec": {"model": {"uri": "builtin://smollm2-135m-instruct"}, **spec},
    }


def resource(**spec: Any) -> InferenceService:
    return decode_resource(resource_manifest(**spec))


def pod(name: str = "chat-1", *, ready: bool = True, age_s: float = 100, **changes: Any) -> Pod:
    fields: dict[str, Any] = {
        "name": name,
        "uid": f"uid-{name}",
        "ip": "10.0.0.1",
        "phase": "Running",
        "created_at": NOW - timedelta(seconds=age_s),
        "scheduled_at": NOW - timedelta(seconds=age_s),
        "is_ready": ready,
        "ready_changed_at": None,
        "is_terminating": False,
        "template_hash": "",
        "deletion_cost": 0,
        "unschedulable": None,
        "unschedulable_since": None,
        "has_sandbox": True,
        "end_reason": "",
        "end_message": "",
        "container": None,
    }
    return Pod(**(fields | changes))


def container(**changes: Any) -> Container:
    fields: dict[str, Any] = {
        "waiting_reason": None,
        "waiting_message": "",
        "has_started": False,
        "num_restarts": 0,
        "last_exit": None,
    }
    return Container(**(fields | changes))


def ended(reason: str = "Error", code: int = 1, message: str = "", ran_s: float = 1.0) -> Exit:
    return Exit(reason, code, message, NOW - timedelta(seconds=ran_s), NOW)


def sample(age_s: float = 0.0, demand: float = 0.0, **changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "at": NOW - timedelta(seconds=age_s),
        "demand": demand,
        "queue_time_s": 0.0,
        "num_running": 0,
        "num_waiting": 0,
        "num_reporting": 1,
        "num_silent": 0,
        "in_flight": (),
    }
    return Sample(**(fields | changes))


def samples(demand: float, *, for_s: float, **changes: Any) -> tuple[Sample, ...]:
    """One sample every five seconds up to now, oldest first."""
    return tuple(sample(age, demand, **changes) for age in range(int(for_s), -1, -5))


def report(**changes: Any) -> LoadReport:
    fields: dict[str, Any] = {
        "model": "m",
        "state": ServerState.READY,
        "step": 1,
        "since_progress_s": 0.0,
        "num_running": 0,
        "num_waiting": 0,
        "waiting_prompt_tokens": 0,
        "kv_tokens_in_use": 0,
        "kv_tokens_capacity": 1000,
        "kv_blocks_free": 0,
        "kv_blocks_live": 0,
        "kv_blocks_cached": 0,
        "kv_blocks_total": 0,
        "max_num_seqs": 4,
    }
    return LoadReport(**(fields | changes))
