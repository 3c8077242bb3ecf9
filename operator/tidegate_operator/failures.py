"""What is wrong with the pods: Kubernetes' many signs to one reason, and a hint what to change."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidegate_operator.deployments import Deployment
from tidegate_operator.pods import Container, Exit, Pod
from tidegate_operator.resource import InferenceServiceSpec

_IMAGE_REASONS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_CONFIG_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
SET_UP_REASONS: Final = {
    "FailedMount": "VolumeNotReady",
    "FailedAttachVolume": "VolumeNotReady",
    "FailedMapVolume": "VolumeNotReady",
    "FailedCreatePodSandBox": "SandboxNotReady",
}
_MESSAGE_LIMIT: Final = 1000  # characters

_SET_UP_HINTS: Final = {
    "VolumeNotReady": "check that the claims, Secrets and ConfigMaps that podTemplate.volumes and the model name exist",
    "SandboxNotReady": "check podTemplate.runtimeClassName, and the node's network plugin",
}

# What to do about a code that the server left in its termination message.
_START_HINTS: Final = {
    "ModelNotFound": "check model.uri and model.revision; a gated model needs model.tokenSecretRef",
    "ModelNotSupported": "serve a model of a supported family, as safetensors or GGUF",
    "InvalidSetting": "correct the engine field or extra argument that it names",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that keeps pods from serving."""

    reason: str  # one word: the condition's reason
    message: str  # what happened, and where
    hint: str  # what to change

    @property
    def sentence(self) -> str:
        return f"{self.message.rstrip('.')}. Hint: {self.hint}." if self.hint else self.message


def find_failure(
    spec: InferenceServiceSpec, deployment: Deployment | None, pods: Sequence[Pod], template_hash: str
) -> Failure | None:
    """The failure worth telling, or None.

    The newest template speaks alone where it can, its youngest pods first: what older pods suffer from, and what the
    Deployment says of an older template, may be what the newest spec has mended.
    """
    if deployment is not None and deployment.template_hash != template_hash:
        deployment = replace(deployment, refusal=None, missed_deadline=None)
    if deployment is not None and deployment.refusal is not None:
        return Failure(
            "PodsRefused",
            f"the API server refuses pods: {deployment.refusal}",
            "check the namespace's quota, limits, Pod Security level and admission webhooks",
        )
    present = [pod for pod in pods if pod.is_present]
    newest = [pod for pod in present if pod.template_hash == template_hash] or present
    for pod in sorted(newest, key=lambda pod: pod.created_at, reverse=True):
        failure = pod_failure(spec, pod)
        if failure is not None:
            return failure
    if deployment is not None and deployment.missed_deadline is not None:
        return Failure(
            "ProgressDeadlineExceeded",
            deployment.missed_deadline,
            "look at the pods' events; a large image or model may need a longer startupTimeoutSeconds",
        )
    is_wanted = deployment is not None and deployment.replicas > 0
    return _end_failure(pods) if is_wanted and not any(pod.is_serving for pod in pods) else None


def _end_failure(pods: Sequence[Pod]) -> Failure | None:
    """Why Kubernetes ended the youngest pod of those that it ended; such pods stay until somebody cleans up."""
    ended = [pod for pod in pods if pod.is_over and pod.end_reason]
    if not ended:
        return None
    pod = max(ended, key=lambda pod: pod.created_at)
    return Failure(
        pod.end_reason,
        f"Kubernetes ended pod {pod.name}: {pod.end_message or pod.end_reason}",
        "another is made in its place; if that ends too, raise resources.memory or free what the message names",
    )


def pod_failure(spec: InferenceServiceSpec, pod: Pod) -> Failure | None:
    """What keeps one pod from serving, as far as its status tells."""
    if pod.is_ready:
        return None
    if pod.warning is not None and pod.warning.reason in SET_UP_REASONS:
        reason = SET_UP_REASONS[pod.warning.reason]
        return Failure(reason, f"pod {pod.name}: {pod.warning.message}", _SET_UP_HINTS[reason])
    if pod.unschedulable is not None:
        return Failure(
            "Unschedulable", f"pod {pod.name}: {pod.unschedulable}", _scheduling_hint(spec, pod.unschedulable)
        )
    container = pod.container
    if container is None:
        return None
    where = f"pod {pod.name}"
    if container.waiting_reason in _IMAGE_REASONS:
        return Failure(
            "ImagePullFailed",
            f"{where}: {container.waiting_reason}: {container.waiting_message}",
            "check the image name and imagePullSecrets; with imagePullPolicy Never the node must have it already",
        )
    if container.waiting_reason in _CONFIG_REASONS:
        return Failure(
            "ContainerConfigInvalid",
            f"{where}: {container.waiting_message or container.waiting_reason}",
            "check that the Secrets and ConfigMaps that the environment names exist",
        )
    if container.last_exit is None or container.has_started:
        return None
    return _exit_failure(spec, pod, container, container.last_exit)


def _exit_failure(spec: InferenceServiceSpec, pod: Pod, container: Container, ended: Exit) -> Failure:
    where = f"pod {pod.name}"
    if ended.reason == "OOMKilled":
        return Failure(
            "OutOfMemory",
            f"{where} was killed for memory",
            "raise resources.memory, or lower engine.kvCacheMemory or engine.maxModelLen",
        )
    code, text = _termination_message(ended.message)
    if code is not None:
        return Failure(code, f"{where}: {text}", _START_HINTS.get(code, "see the pod's log"))
    if _has_timed_out(spec, pod, ended):
        return Failure(
            "StartupTimedOut",
            f"{where} had not loaded its model after {ended.ran_s:.0f} s",
            "raise startupTimeoutSeconds, or keep downloads with model.cache",
        )
    tail = text[-_MESSAGE_LIMIT:] or "no message"
    return Failure(
        "CrashLoop",
        f"{where} ended with code {ended.code} ({container.num_restarts} restarts): {tail}",
        "see the log with `kubectl logs --previous`",
    )


def _has_timed_out(spec: InferenceServiceSpec, pod: Pod, ended: Exit) -> bool:
    """Whether the startup probe ended the run.

    The exit code does not tell: a server that is told to end while it starts ends with 0.
    """
    has_served = ended.started_at is not None and pod.has_been_ready(since=ended.started_at)
    return not has_served and ended.ran_s >= 0.9 * spec.startup_timeout_seconds


def _termination_message(message: str) -> tuple[str | None, str]:
    """The server's `{"code", "message"}`, or no code and the text as it is."""
    try:
        decoded = json.loads(message)
    except ValueError:
        return None, message
    if not isinstance(decoded, dict) or not isinstance(decoded.get("code"), str) or not decoded["code"].isalnum():
        return None, message
    return decoded["code"], str(decoded.get("message", ""))[:_MESSAGE_LIMIT]


def _scheduling_hint(spec: InferenceServiceSpec, said: str) -> str:
    if "persistentvolumeclaim" in said:  # missing, unbound or bound elsewhere: no node of any size would help
        return "check the claim that model.uri, model.cache or podTemplate.volumes names, and its storage class"
    gpu = spec.resources.gpu
    if gpu is not None and gpu.count > 0:
        return (
            f"add nodes with a free {gpu.resource_name}, or check its device plugin, podTemplate.nodeSelector and "
            "podTemplate.tolerations"
        )
    return "add nodes, lower resources.cpu or resources.memory, or check podTemplate.nodeSelector and volumes"
