"""Decisions as Kubernetes Events, so that `kubectl describe` tells why."""

import uuid
from datetime import datetime

import structlog

from tidegate_contract import labels
from tidegate_operator.cluster import EVENT, INFERENCE_SERVICE, Cluster, Manifest
from tidegate_operator.errors import ClusterError
from tidegate_operator.plan import Because
from tidegate_operator.resource import InferenceService

log = structlog.get_logger()

MESSAGE_LIMIT = 1000  # characters; the API server takes 1024 bytes


async def tell(
    cluster: Cluster, resource: InferenceService, because: tuple[Because, ...], now: datetime, reporter: str
) -> None:
    """Log each decision and post it as an Event; a failed post is logged and costs nothing else."""
    for decision in because:
        write = log.warning if decision.is_warning else log.info
        write("decided", resource=str(resource.key), reason=decision.reason, because=decision.sentence)
        try:
            await cluster.create(build_event(resource, decision, now, reporter))
        except ClusterError as error:
            log.warning("event_not_posted", resource=str(resource.key), error=str(error), next="the log has it")


def build_event(resource: InferenceService, decision: Because, now: datetime, reporter: str) -> Manifest:
    timestamp = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {"name": f"{resource.key.name}.{uuid.uuid4().hex[:16]}", "namespace": resource.key.namespace},
        "involvedObject": {
            "apiVersion": INFERENCE_SERVICE.api_version,
            "kind": INFERENCE_SERVICE.name,
            "namespace": resource.key.namespace,
            "name": resource.key.name,
            "uid": resource.uid,
        },
        "reason": decision.reason,
        "message": decision.sentence[:MESSAGE_LIMIT],
        "type": "Warning" if decision.is_warning else "Normal",
        "action": "Reconcile",
        "count": 1,
        "firstTimestamp": timestamp,
        "lastTimestamp": timestamp,
        "reportingComponent": labels.FIELD_MANAGER,
        "reportingInstance": reporter,
        "source": {"component": labels.FIELD_MANAGER},
    }
