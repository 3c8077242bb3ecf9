"""A pod's JSON to what the operator knows of it."""

from typing import Any

import pytest

from tests.operator.make import NOW
from tidegate_contract import labels
from tidegate_operator.pods import Pod, Stage, decode_pod

SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T11:00:00Z"}
SANDBOXED = {"type": "PodReadyToStartContainers", "status": "True"}


def decoded(*conditions: dict[str, Any], **status: Any) -> Pod:
    return decode_pod(
        {
            "metadata": {
                "name": "chat-1",
                "uid": "u",
                "creationTimestamp": "2026-01-01T11:00:00Z",
                "annotations": {labels.TEMPLATE_HASH_ANNOTATION: "abc"},
            },
            "status": {"phase": "Pending", "conditions": list(conditions), **status},
        }
    )


def server(state: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    return [{"name": labels.SERVER_CONTAINER, "state": state, **changes}]


CREATING = server({"waiting": {"reason": "ContainerCreating"}})
RUNNING: dict[str, Any] = {"running": {}}


@pytest.mark.parametrize(
    ("pod", "stage"),
    [
        pytest.param(decoded(), Stage.UNSCHEDULED, id="just made"),
        pytest.param(decoded(SCHEDULED), Stage.SETTING_UP, id="the kubelet has not looked yet"),
        pytest.param(decoded(SCHEDULED, containerStatuses=CREATING), Stage.SETTING_UP, id="no volumes yet"),
        pytest.param(decoded(SCHEDULED, SANDBOXED, containerStatuses=CREATING), Stage.PULLING, id="no image yet"),
        pytest.param(
            decoded(SCHEDULED, SANDBOXED, containerStatuses=server(RUNNING, started=False)), Stage.LOADING, id="runs"
        ),
        pytest.param(
            decoded(SCHEDULED, SANDBOXED, containerStatuses=server(RUNNING, started=True)), Stage.STARTED, id="started"
        ),
    ],
)
def test_stage_follows_what_kubernetes_says(pod: Pod, stage: Stage) -> None:
    assert pod.stage is stage


def test_evicted_pod_is_over_and_says_why() -> None:
    pod = decoded(phase="Failed", reason="Evicted", message="low on memory")
    assert (pod.is_over, pod.is_present, pod.end_reason, pod.end_message) == (True, False, "Evicted", "low on memory")


def test_pod_shows_the_template_it_was_made_from() -> None:
    assert decoded().template_hash == "abc"


def test_readiness_that_was_lost_later_means_that_it_has_been_ready() -> None:
    lost = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T11:59:00Z"}
    pod = decoded(lost)
    assert pod.has_been_ready(since=NOW.replace(hour=11, minute=30))
    assert not pod.has_been_ready(since=NOW.replace(hour=11, minute=59))
    assert not decoded().has_been_ready(since=NOW)
