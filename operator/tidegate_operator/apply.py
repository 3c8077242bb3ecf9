"""Makes the cluster match what is desired; every step may be repeated."""

from tidegate_contract import labels
from tidegate_operator.cluster import Cluster, Manifest, ObjectRef
from tidegate_operator.errors import Conflict, Missing
from tidegate_operator.objects.deployment import SCALER_FIELD_MANAGER
from tidegate_operator.plan import Desired
from tidegate_operator.resource import InferenceService
from tidegate_operator.resource_status import InferenceServiceStatus, encode_status


async def apply(cluster: Cluster, resource: InferenceService, desired: Desired) -> None:
    """Deletion costs before replicas, replicas before the template, status last.

    Replicas come before the template because the template may give their ownership up (see `plan`).
    """
    for victim in desired.victims:
        annotation = {labels.POD_DELETION_COST_ANNOTATION: victim.deletion_cost}
        patch = {"metadata": {"uid": victim.ref.uid, "annotations": annotation}}
        try:
            await cluster.merge(victim.ref, patch)
        except (Conflict, Missing):
            continue  # the pod is gone; the next best one leaves
    if desired.replicas is not None:
        await cluster.apply(desired.replicas, field_manager=SCALER_FIELD_MANAGER, force=True)
    for child in desired.children:
        await _apply_child(cluster, child)
    for ref in desired.remove:
        await cluster.delete(ref)
    await write_status(cluster, resource.ref, resource.status, desired.status)


async def write_status(
    cluster: Cluster, ref: ObjectRef, before: InferenceServiceStatus, status: InferenceServiceStatus
) -> None:
    """Write the status, unless the resource has it already: a write wakes every watcher."""
    if status == before:
        return
    manifest: Manifest = {
        "apiVersion": ref.kind.api_version,
        "kind": ref.kind.name,
        "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
        "status": encode_status(status),
    }
    await cluster.apply(manifest, field_manager=labels.FIELD_MANAGER, force=True, subresource="status")


async def _apply_child(cluster: Cluster, child: Manifest) -> None:
    # What is ours is taken back from whoever changed it. What should be new is not forced: an object that appeared
    # under its name since the observation belongs to somebody else, and shows as a conflict.
    is_ours = "uid" in child["metadata"]
    await cluster.apply(child, field_manager=labels.FIELD_MANAGER, force=is_ours)
