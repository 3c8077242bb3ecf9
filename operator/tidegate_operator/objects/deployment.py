"""The Deployment: a rendering of the pod, rolled one pod at a time without losing capacity."""

from typing import Final

from tidegate_operator.cluster import DEPLOYMENT, Manifest
from tidegate_operator.objects.metadata import child, pod_selector
from tidegate_operator.objects.rendering import Rendering
from tidegate_operator.resource import InferenceService

PULL_ALLOWANCE_S: Final = 900  # an image with CUDA takes minutes to pull, before the startup time begins
SCALER_FIELD_MANAGER: Final = "tidegate-autoscaler"


def build_deployment(
    resource: InferenceService, rendering: Rendering, *, replicas: int | None, max_unavailable: int | str
) -> Manifest:
    """Without `replicas` where they are None, as while the autoscaler owns them."""
    spec: Manifest = {
        "selector": {"matchLabels": pod_selector(resource.key.name)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": max_unavailable},
        },
        "progressDeadlineSeconds": resource.spec.startup_timeout_seconds + PULL_ALLOWANCE_S,
        "revisionHistoryLimit": 3,
        "template": rendering.pod_template,
    }
    if replicas is not None:
        spec["replicas"] = replicas
    return child(DEPLOYMENT, resource, annotations=rendering.annotations) | {"spec": spec}


def build_replicas(resource: InferenceService, replicas: int) -> Manifest:
    """Just the replica count, applied under a field manager of its own so that the two never undo each other."""
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.name,
        "metadata": {"name": resource.key.name, "namespace": resource.key.namespace},
        "spec": {"replicas": replicas},
    }
