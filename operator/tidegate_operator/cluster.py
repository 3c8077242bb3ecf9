"""What the operator asks of a Kubernetes API server: a small protocol, and the kinds it speaks of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tidegate_contract import labels

Manifest = dict[str, Any]
"""One Kubernetes object as JSON; decoded into types where it enters, built where it leaves."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object and where the API server keeps it."""

    group: str  # empty: the core group
    version: str
    name: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


INFERENCE_SERVICE: Final = Kind(labels.GROUP, labels.VERSION, labels.KIND, labels.PLURAL)
DEPLOYMENT: Final = Kind("apps", "v1", "Deployment", "deployments")
SERVICE: Final = Kind("", "v1", "Service", "services")
SERVICE_ACCOUNT: Final = Kind("", "v1", "ServiceAccount", "serviceaccounts")
POD_DISRUPTION_BUDGET: Final = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
POD: Final = Kind("", "v1", "Pod", "pods")
EVENT: Final = Kind("", "v1", "Event", "events")
LEASE: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases")

CHILD_KINDS: Final = (SERVICE_ACCOUNT, SERVICE, POD_DISRUPTION_BUDGET, DEPLOYMENT)
"""What one InferenceService may own, in the order in which it is applied."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Which InferenceService: what the queue holds and a reconcile starts from."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One object in the cluster; with a uid it means that very object, not a later one of the same name."""

    kind: Kind
    namespace: str
    name: str
    uid: str | None = None

    def __str__(self) -> str:
        return f"{self.kind.name} {self.namespace}/{self.name}"


class Cluster(Protocol):
    """The API server, real or in memory. Every method raises one of `errors.ClusterError` when it cannot."""

    async def get(self, ref: ObjectRef) -> Manifest | None:
        """The object, or None where there is none."""
        ...

    async def list(
        self, kind: Kind, namespace: str | None, labels: Mapping[str, str], fields: Mapping[str, str] | None = None
    ) -> Sequence[Manifest]:
        """All objects of a kind with these labels and fields; namespace None means every namespace."""
        ...

    async def create(self, manifest: Manifest) -> Manifest:
        """Make a new object; `Conflict` when it is there already."""
        ...

    async def replace(self, manifest: Manifest) -> Manifest:
        """Put the object as given; `Conflict` when its resourceVersion is not the newest."""
        ...

    async def apply(
        self, manifest: Manifest, *, field_manager: str, force: bool, subresource: str | None = None
    ) -> Manifest:
        """Server-side apply: own exactly the fields given, drop those owned before and not given now."""
        ...

    async def merge(self, ref: ObjectRef, patch: Manifest) -> Manifest:
        """JSON merge patch of one object."""
        ...

    async def delete(self, ref: ObjectRef) -> None:
        """Delete that very object if it is still there."""
        ...


def kind_of(manifest: Manifest) -> Kind:
    """The kind a manifest names; KeyError for one the operator never handles."""
    return _KINDS[manifest["apiVersion"], manifest["kind"]]


def ref_of(manifest: Manifest) -> ObjectRef:
    """Which object a manifest describes, with its uid when it came from the cluster."""
    metadata = manifest["metadata"]
    return ObjectRef(kind_of(manifest), metadata["namespace"], metadata["name"], metadata.get("uid"))


_KINDS: Final = {(kind.api_version, kind.name): kind for kind in (INFERENCE_SERVICE, *CHILD_KINDS, POD, EVENT, LEASE)}
