"""Kubernetes' signs of trouble, each with the reason it becomes."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.operator.make import NOW, container, ended, pod, resource
from tidegate_operator.deployments import Deployment
from tidegate_operator.failures import find_failure
from tidegate_operator.pods import Pod, PodWarning

DEPLOYMENT = Deployment({}, "image", 1, 1, 1, 0, True, None, None, ())


def left(code: str, message: str) -> str:
    return json.dumps({"code": code, "message": message})


@pytest.mark.parametrize(
    ("troubled", "reason", "told"),
    [
        pytest.param(
            pod(ready=False, container=container(waiting_reason="ImagePullBackOff", waiting_message="no such image")),
            "ImagePullFailed",
            "no such image",
            id="an image that cannot be pulled",
        ),
        pytest.param(
            pod(ready=False, container=container(waiting_reason="ErrImageNeverPull")),
            "ImagePullFailed",
            "Never",
            id="an image that the node does not have",
        ),
        pytest.param(
            pod(ready=False, unschedulable="0/3 nodes are available", unschedulable_since=NOW),
            "Unschedulable",
            "0/3 nodes",
            id="no node",
        ),
        pytest.param(
            pod(ready=False, unschedulable='persistentvolumeclaim "nope" not found', unschedulable_since=NOW),
            "Unschedulable",
            "check the claim",
            id="a claim that is not there",
        ),
        pytest.param(
            pod(
                ready=False,
                container=container(
                    waiting_reason="CreateContainerConfigError", waiting_message='secret "hf" not found'
                ),
            ),
            "ContainerConfigInvalid",
            'secret "hf" not found',
            id="a missing secret",
        ),
        pytest.param(
            pod(ready=False, container=container(last_exit=ended("OOMKilled", 137))),
            "OutOfMemory",
            "resources.memory",
            id="killed for memory",
        ),
        pytest.param(
            pod(ready=False, container=container(last_exit=ended(message=left("ModelNotFound", "no /m.gguf")))),
            "ModelNotFound",
            "model.uri",
            id="a missing model, as the server says it",
        ),
        pytest.param(
            pod(ready=False, container=container(last_exit=ended(message=left("InvalidSetting", "--dtype: x")))),
            "InvalidSetting",
            "--dtype: x",
            id="a wrong argument, as the server says it",
        ),
        pytest.param(
            pod(ready=False, container=container(last_exit=ended(code=137, ran_s=600), num_restarts=1)),
            "StartupTimedOut",
            "startupTimeoutSeconds",
            id="killed by its startup probe",
        ),
        pytest.param(
            pod(ready=False, container=container(last_exit=ended("Completed", 0, ran_s=600), num_restarts=1)),
            "StartupTimedOut",
            "startupTimeoutSeconds",
            id="ended in order by its startup probe",
        ),
        pytest.param(
            pod(ready=False, ready_changed_at=NOW, container=container(last_exit=ended(code=137, ran_s=6000))),
            "CrashLoop",
            "137",
            id="killed after it had served",
        ),
        pytest.param(
            pod(
                ready=False,
                ready_changed_at=NOW - timedelta(seconds=601),
                container=container(last_exit=ended("Completed", 0, ran_s=600)),
            ),
            "StartupTimedOut",
            "600 s",
            id="not loaded in time after a run that had served",
        ),
        pytest.param(
            pod(
                ready=False,
                container=container(waiting_reason="ContainerCreating"),
                warning=PodWarning("FailedMount", 'MountVolume.SetUp failed: configmap "nope" not found'),
            ),
            "VolumeNotReady",
            'configmap "nope" not found',
            id="a volume that is not there",
        ),
        pytest.param(
            pod(ready=False, warning=PodWarning("FailedCreatePodSandBox", 'no runtime for "nvidia" is configured')),
            "SandboxNotReady",
            "runtimeClassName",
            id="a runtime class that the node does not have",
        ),
        pytest.param(
            pod(
                ready=False,
                container=container(
                    waiting_reason="CrashLoopBackOff",
                    num_restarts=4,
                    last_exit=ended(code=1, message="Traceback: boom"),
                ),
            ),
            "CrashLoop",
            "boom",
            id="a crash with only a log to show",
        ),
    ],
)
def test_trouble_of_a_pod_has_a_reason_and_a_hint(troubled: Pod, reason: str, told: str) -> None:
    failure = find_failure(resource().spec, DEPLOYMENT, [troubled], "")
    assert failure is not None
    assert failure.reason == reason
    assert told in failure.sentence
    assert failure.hint


@pytest.mark.parametrize(
    "fine",
    [
        pytest.param(pod(), id="ready"),
        pytest.param(pod(ready=False), id="just created"),
        pytest.param(pod(ready=False, container=container(waiting_reason="ContainerCreating")), id="being made"),
        pytest.param(pod(ready=False, container=container()), id="loading"),
        pytest.param(pod(container=container(has_started=True, last_exit=ended())), id="recovered"),
        pytest.param(pod(ready=False, is_terminating=True, container=container(last_exit=ended())), id="leaving"),
        pytest.param(
            pod(ready=False, warning=PodWarning("FailedPreStopHook", "")), id="a warning about something else"
        ),
    ],
)
def test_a_pod_on_its_way_is_no_failure(fine: Pod) -> None:
    assert find_failure(resource().spec, DEPLOYMENT, [fine], "") is None


def test_the_newest_pod_speaks_first() -> None:
    old = pod("old", ready=False, age_s=900, container=container(last_exit=ended("OOMKilled", 137)))
    new = pod("new", ready=False, age_s=9, container=container(waiting_reason="ErrImagePull"))
    failure = find_failure(resource().spec, DEPLOYMENT, [old, new], "")
    assert failure is not None
    assert failure.reason == "ImagePullFailed"


def test_pods_of_the_newest_template_speak_alone() -> None:
    old = pod("old", ready=False, template_hash="old", container=container(last_exit=ended("OOMKilled", 137)))
    new = pod("new", ready=False, template_hash="new", container=container())
    assert find_failure(resource().spec, DEPLOYMENT, [old, new], "new") is None
    alone = find_failure(resource().spec, DEPLOYMENT, [old], "new")
    assert alone is not None
    assert alone.reason == "OutOfMemory"


EVICTED = pod("gone", ready=False, phase="Failed", end_reason="Evicted", end_message="The node was low on memory.")


def test_evicted_pod_is_the_failure_only_while_nothing_serves() -> None:
    alone = find_failure(resource().spec, DEPLOYMENT, [EVICTED], "")
    assert alone is not None
    assert alone.reason == "Evicted"
    assert "low on memory" in alone.sentence
    assert find_failure(resource().spec, DEPLOYMENT, [EVICTED, pod()], "") is None
    assert find_failure(resource().spec, replace(DEPLOYMENT, replicas=0), [EVICTED], "") is None


def test_pod_that_fails_now_says_more_than_one_that_was_evicted() -> None:
    crashed = pod("crashed", ready=False, container=container(last_exit=ended()))
    failure = find_failure(resource().spec, DEPLOYMENT, [EVICTED, crashed], "")
    assert failure is not None
    assert failure.reason == "CrashLoop"


def test_what_the_deployment_says_of_an_older_template_is_not_told() -> None:
    refused = replace(DEPLOYMENT, refusal="exceeded quota", missed_deadline="timed out")
    assert find_failure(resource().spec, refused, [], "newer") is None


def test_pods_that_the_api_server_refuses_are_told_in_its_words() -> None:
    refused = replace(DEPLOYMENT, refusal='pods "chat" is forbidden: exceeded quota')
    failure = find_failure(resource().spec, refused, [], "")
    assert failure is not None
    assert failure.reason == "PodsRefused"
    assert "exceeded quota" in failure.sentence


def test_missed_deadline_is_told_when_nothing_says_more() -> None:
    late = replace(DEPLOYMENT, missed_deadline="ReplicaSet has timed out progressing.")
    failure = find_failure(resource().spec, late, [pod(ready=False)], "")
    assert failure is not None
    assert failure.reason == "ProgressDeadlineExceeded"


def test_gpu_hint_names_the_gpu_resource() -> None:
    spec = resource(resources={"gpu": {"count": 1, "resourceName": "amd.com/gpu"}}).spec
    failure = find_failure(spec, DEPLOYMENT, [pod(ready=False, unschedulable="none")], "")
    assert failure is not None
    assert "amd.com/gpu" in failure.hint
