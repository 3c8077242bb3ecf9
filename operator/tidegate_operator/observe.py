"""The cluster to one frozen snapshot.

Reads are live rather than from a watch's cache: five small requests a pass, and no plan ever acts on a state that its
own last apply has already changed.
"""

import asyncio
from datetime import datetime

from tidegate_operator.cluster import (
    CHILD_KINDS,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    POD,
    Cluster,
    Key,
    Manifest,
    ObjectRef,
    ref_of,
)
from tidegate_operator.deployments import decode_deployment
from tidegate_operator.objects.metadata import is_owned_by, pod_selector
from tidegate_operator.observed import Foreign, Observed
from tidegate_operator.pod_events import with_warning
from tidegate_operator.pods import Pod, decode_pod
from tidegate_operator.resource import InferenceService


async def observe(cluster: Cluster, resource: InferenceService, now: datetime) -> Observed:
    """Everything but the samples of load, which the caller remembers."""
    key = resource.key
    children, pods = await asyncio.gather(_children(cluster, key), _pods(cluster, key, now))
    ours = [child for child in children if is_owned_by(child, resource.uid)]
    foreign = [child for child in children if child not in ours]
    deployment = next((child for child in ours if child["kind"] == DEPLOYMENT.name), None)
    # The pods of a Deployment that is not ours are not ours either, whatever label they carry.
    has_pods = all(child["kind"] != DEPLOYMENT.name for child in foreign)
    return Observed(
        deployment=None if deployment is None else decode_deployment(deployment),
        pods=pods if has_pods else (),
        children=tuple(ref_of(child) for child in ours),
        foreign=tuple(Foreign(ref_of(child), _owner(child), _is_leaving(child, key)) for child in foreign),
    )


async def _children(cluster: Cluster, key: Key) -> list[Manifest]:
    found = await asyncio.gather(*(cluster.get(ObjectRef(kind, key.namespace, key.name)) for kind in CHILD_KINDS))
    return [child for child in found if child is not None]


async def _pods(cluster: Cluster, key: Key, now: datetime) -> tuple[Pod, ...]:
    found = await cluster.list(POD, key.namespace, pod_selector(key.name))
    return await with_warning(cluster, key.namespace, [decode_pod(pod) for pod in found], now)


def _owner(manifest: Manifest) -> str:
    owners = manifest["metadata"].get("ownerReferences") or []
    if not owners:
        return "owned by nobody"
    return f"owned by {owners[0]['kind']} {owners[0]['name']}"


def _is_leaving(foreign: Manifest, key: Key) -> bool:
    """Whether it goes by itself: it is being deleted, or belonged to an earlier resource of the same name."""
    metadata = foreign["metadata"]
    predecessor = (INFERENCE_SERVICE.api_version, INFERENCE_SERVICE.name, key.name)
    return "deletionTimestamp" in metadata or any(
        (owner["apiVersion"], owner["kind"], owner["name"]) == predecessor
        for owner in metadata.get("ownerReferences") or []
    )
