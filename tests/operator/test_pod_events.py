"""When a pod's events are asked for, and which of them is taken."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.operator.fake_cluster import FakeCluster
from tests.operator.make import NOW, container, pod
from tidegate_operator.cluster import Kind, Manifest
from tidegate_operator.errors import Refused
from tidegate_operator.pod_events import with_warning
from tidegate_operator.pods import Pod, PodWarning

STUCK = pod("stuck", ready=False, age_s=60, has_sandbox=False, container=container(waiting_reason="ContainerCreating"))


def event(name: str, message: str, *, seen: str, of: str = STUCK.uid, **changes: Any) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "demo"},
        "involvedObject": {"uid": of},
        "type": "Warning",
        "reason": "FailedMount",
        "message": message,
        "lastTimestamp": seen,
        **changes,
    }


def told(cluster: FakeCluster, *pods: Pod) -> list[PodWarning | None]:
    return [pod.warning for pod in asyncio.run(with_warning(cluster, "demo", pods, NOW))]


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.put(event("b", "newest", seen="2026-01-01T11:59:59Z"))
    cluster.put(event("a", "older", seen="2026-01-01T11:59:00Z"))
    cluster.put(event("c", "of another pod", seen="2026-01-01T12:00:00Z", of="other"))
    cluster.put(event("d", "no warning", seen="2026-01-01T12:00:00Z", type="Normal"))
    cluster.put(event("e", "of an earlier stage", seen="2026-01-01T12:00:00Z", reason="FailedScheduling"))
    return cluster


def test_newest_warning_about_the_pod_is_taken(cluster: FakeCluster) -> None:
    assert told(cluster, pod(), STUCK) == [None, PodWarning("FailedMount", "newest")]


@pytest.mark.parametrize(
    "patient",
    [
        pytest.param(replace(STUCK, scheduled_at=NOW), id="it was scheduled just now"),
        pytest.param(replace(STUCK, scheduled_at=None), id="it has no node yet"),
        pytest.param(replace(STUCK, has_sandbox=True), id="its image is being pulled"),
        pytest.param(replace(STUCK, is_terminating=True), id="it leaves"),
        pytest.param(replace(STUCK, container=container()), id="it runs"),
    ],
)
def test_no_other_pod_is_asked_about(cluster: FakeCluster, patient: Pod) -> None:
    assert told(cluster, patient) == [None]


def test_pod_without_events_is_only_slow() -> None:
    assert told(FakeCluster(), STUCK) == [None]


class WithoutRights(FakeCluster):
    async def list(self, kind: Kind, *args: Any, **kwargs: Any) -> list[Manifest]:
        raise Refused("events is forbidden", status=403)


def test_missing_right_to_read_events_stops_nothing() -> None:
    assert told(WithoutRights(), STUCK) == [None]
