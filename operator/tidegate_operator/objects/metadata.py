"""What all objects of one InferenceService share: name, labels and the owner that garbage collection follows."""

from tidegate_contract import labels
from tidegate_operator.cluster import INFERENCE_SERVICE, Kind, Manifest
from tidegate_operator.resource import InferenceService


def child(kind: Kind, resource: InferenceService, *, annotations: dict[str, str] | None = None) -> Manifest:
    """The head of a child's manifest: everything but its spec."""
    metadata: Manifest = {
        "name": resource.key.name,
        "namespace": resource.key.namespace,
        "labels": child_labels(resource.key.name),
        "ownerReferences": [_owner(resource)],
    }
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata}


def child_labels(name: str) -> dict[str, str]:
    return {
        labels.NAME_LABEL: labels.NAME_VALUE,
        labels.INSTANCE_LABEL: name,
        labels.MANAGED_BY_LABEL: labels.MANAGED_BY_VALUE,
        labels.SERVICE_LABEL: name,
    }


def pod_selector(name: str) -> dict[str, str]:
    """The one label that finds the pods; a Deployment's selector can never change, so it is kept minimal."""
    return {labels.SERVICE_LABEL: name}


def is_owned_by(manifest: Manifest, uid: str) -> bool:
    """Whether the object has this very resource as its controller."""
    owners = manifest["metadata"].get("ownerReferences") or []
    return any(owner.get("controller") and owner["uid"] == uid for owner in owners)


def _owner(resource: InferenceService) -> Manifest:
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.name,
        "name": resource.key.name,
        "uid": resource.uid,
        "controller": True,
        # True would ask for the right to set finalizers on the owner, and make foreground deletion wait for drains.
        "blockOwnerDeletion": False,
    }
