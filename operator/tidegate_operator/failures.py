"""What is wrong with the pods: Kubernetes' many signs to one reason, and a hint what to change."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
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
_KILLED_CODES: Final = (137, 143)  # by SIGKILL, by SIGTERM
_MESSAGE_LIMIT: Final = 1000  # characters

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


def find_failure(spec: InferenceServiceSpec, deployment: Deployment | None, pods: Sequence[Pod]) -> Failure | None:
    """The failure worth telling, or None; the newest pods speak first, for they run the newest spec."""
    if deployment is not None and deployment.refusal is not None:
        return Failure(
            "PodsRefused",
            f"the API server refuses pods: {deployment.refusal}",
            "check the namespace's quota, limits, Pod Security level and admission webhooks",
        )
    troubled = [pod for pod in pods if not pod.is_ready and not pod.is_terminating]
    for pod in sorted(troubled, key=lambda pod: pod.created_at, reverse=True):
        failure = _pod_failure(spec, pod)
        if failure is not None:
            return failure
    if deployment is not None and deployment.missed_deadline is not None:
        return Failure(
            "ProgressDeadlineExceeded",
            deployment.missed_deadline,
            "look at the pods' events; a large image or model may need a longer startupTimeoutSeconds",
        )
    return None


def _pod_failure(spec: InferenceServiceSpec, pod: Pod) -> Failure | None:
    if pod.unschedulable is not None:
        return Failure("Unschedulable", f"pod {pod.name}: {pod.unschedulable}", _scheduling_hint(spec))
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
            "check that the Secrets, ConfigMaps and volumes that the resource names exist",
        )
    if container.last_exit is None or container.has_started:
        return None
    return _exit_failure(spec, where, container, container.last_exit)


def _exit_failure(spec: InferenceServiceSpec, where: str, container: Container, ended: Exit) -> Failure:
    if ended.reason == "OOMKilled":
        return Failure(
            "OutOfMemory",
            f"{where} was killed for memory",
            "raise resources.memory, or lower engine.kvCacheMemory or engine.maxModelLen",
        )
    code, text = _termination_message(ended.message)
    if code is not None:
        return Failure(code, f"{where}: {text}", _START_HINTS.get(code, "see the pod's log"))
    ran_s = ended.ran_s or 0.0
    if ended.code in _KILLED_CODES and ran_s >= 0.9 * spec.startup_timeout_seconds:
        return Failure(
            "StartupTimedOut",
            f"{where} had not loaded its model after {ran_s:.0f} s",
            "raise startupTimeoutSeconds, or keep downloads with model.cache",
        )
    tail = text[-_MESSAGE_LIMIT:] or "no message"
    return Failure(
        "CrashLoop",
        f"{where} ended with code {ended.code} ({container.num_restarts} restarts): {tail}",
        "see the log with `kubectl logs --previous`",
    )


def _termination_message(message: str) -> tuple[str | None, str]:
    """The server's `{"code", "message"}`, or no code and the text as it is."""
    try:
        decoded = json.loads(message)
    except ValueError:
        return None, message
    if not isinstance(decoded, dict) or not isinstance(decoded.get("code"), str) or not decoded["code"].isalnum():
        return None, message
    return decoded["code"], str(decoded.get("message", ""))[:_MESSAGE_LIMIT]


def _scheduling_hint(spec: InferenceServiceSpec) -> str:
    gpu = spec.resources.gpu
    if gpu is not None and gpu.count > 0:
        return (
            f"add nodes with a free {gpu.resource_name}, or check its device plugin, podTemplate.nodeSelector and "
            "podTemplate.tolerations"
        )
    return "add nodes, lower resources.cpu or resources.memory, or check podTemplate.nodeSelector and volumes"
