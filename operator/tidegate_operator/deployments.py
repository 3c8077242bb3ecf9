"""The live Deployment as the operator sees it: how far its rollout is, and who sets its replicas."""

from dataclasses import dataclass
from typing import Any

from tidegate_contract.labels import FIELD_MANAGER, TEMPLATE_HASH_ANNOTATION
from tidegate_operator.cluster import Manifest
from tidegate_operator.objects.deployment import SCALER_FIELD_MANAGER


@dataclass(frozen=True, slots=True)
class Deployment:
    annotations: dict[str, str]
    image: str
    replicas: int  # wanted by its spec
    num_pods: int
    num_updated: int  # pods of the newest revision
    num_available: int
    is_observed: bool  # its controller has seen the newest spec
    refusal: str | None  # why the API server refuses its pods: quota, policy, webhook
    missed_deadline: str | None  # why the controller gave the rollout up
    replicas_owners: tuple[str, ...]  # field managers of `spec.replicas`

    @property
    def template_hash(self) -> str:
        """Of the rendering that it runs; empty when that was lost."""
        return self.annotations.get(TEMPLATE_HASH_ANNOTATION, "")

    @property
    def is_rolling(self) -> bool:
        """Pods of an old revision are still there, or the controller has not looked yet."""
        return not self.is_observed or self.num_pods > self.num_updated

    @property
    def is_scaled_by_template(self) -> bool:
        """Our own apply of the whole Deployment owns the replicas, as with a fixed count."""
        return FIELD_MANAGER in self.replicas_owners

    @property
    def foreign_scaler(self) -> str | None:
        """Somebody else who has set the replicas; while we own them too, nobody has changed them since."""
        if FIELD_MANAGER in self.replicas_owners or SCALER_FIELD_MANAGER in self.replicas_owners:
            return None
        return next(iter(self.replicas_owners), None)


def decode_deployment(manifest: Manifest) -> Deployment:
    metadata, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    return Deployment(
        annotations=metadata.get("annotations") or {},
        image=spec["template"]["spec"]["containers"][0].get("image", ""),
        replicas=spec.get("replicas", 1),
        num_pods=status.get("replicas", 0),
        num_updated=status.get("updatedReplicas", 0),
        num_available=status.get("availableReplicas", 0),
        is_observed=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
        refusal=_message_if(conditions.get("ReplicaFailure"), "True"),
        missed_deadline=_message_if(conditions.get("Progressing"), "False"),
        replicas_owners=tuple(
            str(entry.get("manager", ""))
            for entry in metadata.get("managedFields") or []
            if "f:replicas" in (entry.get("fieldsV1") or {}).get("f:spec", {})
        ),
    )


def _message_if(condition: dict[str, Any] | None, status: str) -> str | None:
    if condition is None or condition.get("status") != status:
        return None
    return str(condition.get("message") or condition.get("reason", ""))
