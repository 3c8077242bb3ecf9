"""The PodDisruptionBudget: a node drain takes one pod at a time."""

from tidegate_operator.cluster import POD_DISRUPTION_BUDGET, Manifest
from tidegate_operator.objects.metadata import child, pod_selector
from tidegate_operator.resource import InferenceService


def build_pod_disruption_budget(resource: InferenceService) -> Manifest:
    spec: Manifest = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": pod_selector(resource.key.name)},
        # A pod that cannot become ready must not stop a node from being drained.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return child(POD_DISRUPTION_BUDGET, resource) | {"spec": spec}
