"""What Kubernetes' events say of a pod that waits long for its volumes or network: its status does not tell."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import structlog

from tidegate_operator.cluster import EVENT, Cluster, Manifest
from tidegate_operator.errors import ClusterError
from tidegate_operator.failures import SET_UP_REASONS
from tidegate_operator.pods import Pod, PodWarning, Stage, parse_time

log = structlog.get_logger()

PATIENCE: Final = timedelta(minutes=1)  # a volume that is attached anew takes about half of that


async def with_warning(cluster: Cluster, namespace: str, pods: Sequence[Pod], now: datetime) -> tuple[Pod, ...]:
    """The pods; the youngest of those that wait too long carries the newest warning about it."""
    waiting = [pod for pod in pods if _waits_long(pod, now)]
    if not waiting:
        return tuple(pods)
    asked = max(waiting, key=lambda pod: pod.created_at)
    fields = {"involvedObject.uid": asked.uid, "type": "Warning"}
    try:
        events = await cluster.list(EVENT, namespace, {}, fields)
    except ClusterError as error:
        log.warning("pod_events_not_read", pod=asked.name, error=str(error), next="the pod counts as starting")
        return tuple(pods)
    telling = [event for event in events if event.get("reason") in SET_UP_REASONS]
    if not telling:
        return tuple(pods)
    newest = max(telling, key=_last_seen)
    warning = PodWarning(newest["reason"], newest.get("message", ""))
    return tuple(replace(pod, warning=warning) if pod is asked else pod for pod in pods)


def _waits_long(pod: Pod, now: datetime) -> bool:
    if not pod.is_present or pod.stage is not Stage.SETTING_UP:
        return False
    return now - (pod.scheduled_at or pod.created_at) >= PATIENCE


def _last_seen(event: Manifest) -> datetime:
    return parse_time(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])
