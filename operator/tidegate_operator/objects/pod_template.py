"""The pod: one container that serves, allowed nothing it does not need."""

import math
from collections.abc import Sequence
from typing import Final

from tidegate_contract import labels
from tidegate_operator.cluster import Manifest
from tidegate_operator.objects.metadata import child_labels, pod_selector
from tidegate_operator.objects.server_args import (
    MODELS_MOUNT_PATH,
    PVC_SCHEME,
    server_args,
    split_claim,
)
from tidegate_operator.platform import Platform
from tidegate_operator.quantity import Quantity, number
from tidegate_operator.resource import InferenceService, InferenceServiceSpec

USER_ID: Final = 65532  # the image's own user: torch needs one with a name; numeric, or the kubelet cannot check it
CACHE_MOUNT_PATH: Final = "/cache"
GRACE_MARGIN_S: Final = 15  # for the process to end after the last request did
STARTUP_PROBE_PERIOD_S: Final = 2
SHM_SIZE_CPU: Final = "256Mi"
SHM_SIZE_GPU: Final = "1Gi"


def build_pod_template(resource: InferenceService, platform: Platform) -> Manifest:
    spec, override = resource.spec, resource.spec.pod_template
    metadata: Manifest = {
        # Ours last: the selector depends on them.
        "labels": dict(override.labels) | child_labels(resource.key.name),
        "annotations": {"kubectl.kubernetes.io/default-container": labels.SERVER_CONTAINER}
        | dict(override.annotations),
    }
    pod: Manifest = {
        "serviceAccountName": override.service_account_name or resource.key.name,
        "automountServiceAccountToken": False,
        # With service links a Service called "tidegate" would set TIDEGATE_PORT, which the server reads as a flag.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_period_s(spec),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",  # a recursive chown of a model volume takes minutes
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(spec, platform)],
        "volumes": _merged(_volumes(spec), override.volumes, key="name"),
        "topologySpreadConstraints": [
            _spread("topology.kubernetes.io/zone", resource.key.name),
            _spread("kubernetes.io/hostname", resource.key.name),
        ],
        "tolerations": [*_gpu_tolerations(spec), *override.tolerations],
    }
    optional: Manifest = {
        "imagePullSecrets": [{"name": secret.name} for secret in spec.image_pull_secrets],
        "nodeSelector": dict(override.node_selector),
        "affinity": override.affinity,
        "runtimeClassName": override.runtime_class_name,
        "priorityClassName": override.priority_class_name,
    }
    return {"metadata": metadata, "spec": pod | {name: value for name, value in optional.items() if value}}


def grace_period_s(spec: InferenceServiceSpec) -> int:
    """How long the kubelet waits after SIGTERM, on which the server drains by itself: no preStop hook is needed."""
    return spec.drain.notice_seconds + spec.drain.timeout_seconds + GRACE_MARGIN_S


def _container(spec: InferenceServiceSpec, platform: Platform) -> Manifest:
    return {
        "name": labels.SERVER_CONTAINER,
        "image": spec.image or platform.server_image,
        "imagePullPolicy": (spec.image_pull_policy or platform.server_image_pull_policy).value,
        "args": ["serve", *server_args(spec)],
        "env": _merged(_environment(spec), spec.pod_template.env, key="name"),
        "ports": [
            {"name": labels.API_PORT_NAME, "containerPort": labels.API_PORT, "protocol": "TCP"},
            {"name": labels.OPS_PORT_NAME, "containerPort": labels.OPS_PORT, "protocol": "TCP"},
        ],
        "resources": _resources(spec),
        "startupProbe": _probe(
            labels.STARTUP_PATH,
            period_s=STARTUP_PROBE_PERIOD_S,
            failures=math.ceil(spec.startup_timeout_seconds / STARTUP_PROBE_PERIOD_S),
        ),
        "readinessProbe": _probe(labels.READY_PATH, period_s=2, failures=2),
        "livenessProbe": _probe(labels.LIVE_PATH, period_s=10, failures=3),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # The server leaves {"code", "message"} there; where it could not, the last lines of its log say more.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _merged(_volume_mounts(spec), spec.pod_template.volume_mounts, key="mountPath"),
    }


def _merged(ours: Sequence[Manifest], theirs: Sequence[Manifest], *, key: str) -> list[Manifest]:
    """One list of both, where the user's entry replaces ours of the same key: Kubernetes takes each key once."""
    replaced = {entry.get(key) for entry in theirs}
    return [*(entry for entry in ours if entry[key] not in replaced), *theirs]


def _probe(path: str, *, period_s: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": labels.OPS_PORT_NAME, "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": 2,
        "failureThreshold": failures,
    }


def _environment(spec: InferenceServiceSpec) -> list[Manifest]:
    env: list[Manifest] = [
        {"name": "HOME", "value": "/tmp"},
        {"name": "HF_HOME", "value": f"{CACHE_MOUNT_PATH}/hf"},
        {"name": "TRITON_CACHE_DIR", "value": f"{CACHE_MOUNT_PATH}/triton"},
    ]
    if spec.resources.cpu is not None:
        # Otherwise torch starts a thread for each core of the node and they fight over this pod's share.
        env.append({"name": "OMP_NUM_THREADS", "value": str(_whole_cores(spec.resources.cpu))})
    if spec.model.token_secret_ref is not None:
        secret = spec.model.token_secret_ref
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}})
    return env


def _whole_cores(cpu: Quantity) -> int:
    return max(1, math.ceil(number(cpu)))


def _resources(spec: InferenceServiceSpec) -> Manifest:
    requests: Manifest = {}
    limits: Manifest = {}
    if spec.resources.cpu is not None:
        requests["cpu"] = str(spec.resources.cpu)
    if spec.resources.memory is not None:
        requests["memory"] = limits["memory"] = str(spec.resources.memory)
    gpu = spec.resources.gpu
    if gpu is not None and gpu.count > 0:
        limits[gpu.resource_name] = str(gpu.count)
    return {name: part for name, part in (("requests", requests), ("limits", limits)) if part}


def _gpu_tolerations(spec: InferenceServiceSpec) -> list[Manifest]:
    gpu = spec.resources.gpu
    if gpu is None or gpu.count == 0:
        return []
    return [{"key": gpu.resource_name, "operator": "Exists", "effect": "NoSchedule"}]


def _volumes(spec: InferenceServiceSpec) -> list[Manifest]:
    gpu = spec.resources.gpu
    shm_size = SHM_SIZE_GPU if gpu is not None and gpu.count > 0 else SHM_SIZE_CPU
    cache: Manifest = {"name": "cache", "emptyDir": {}}
    if spec.model.cache is not None:
        cache = {"name": "cache", "persistentVolumeClaim": {"claimName": spec.model.cache.claim_name}}
    volumes: list[Manifest] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm_size}},
        cache,
    ]
    if spec.model.uri.startswith(PVC_SCHEME):
        claim, _ = split_claim(spec.model.uri)
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
    return volumes


def _volume_mounts(spec: InferenceServiceSpec) -> list[Manifest]:
    mounts: list[Manifest] = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "cache", "mountPath": CACHE_MOUNT_PATH},
    ]
    if spec.model.uri.startswith(PVC_SCHEME):
        mounts.append({"name": "model", "mountPath": MODELS_MOUNT_PATH, "readOnly": True})
    return mounts


def _spread(topology_key: str, name: str) -> Manifest:
    return {
        "maxSkew": 1,
        "topologyKey": topology_key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": pod_selector(name)},
        "matchLabelKeys": ["pod-template-hash"],  # count one revision's pods only, or a rollout skews itself
    }
