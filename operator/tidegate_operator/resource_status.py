"""The status of an InferenceService, typed: conditions, replicas, and what the autoscaler thinks."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from tidegate_operator.cluster import Manifest
from tidegate_operator.part import Part


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Part, frozen=True, kw_only=True):
    """One fact in status."""

    type: Annotated[
        str, Meta(max_length=64, description="Ready, Progressing, Degraded, ScalingActive, ScalingLimited.")
    ]
    status: Annotated[ConditionStatus, Meta(description="True, False or Unknown.")]
    reason: Annotated[str, Meta(max_length=128, description="One word for machines.")]
    message: Annotated[str, Meta(max_length=4096, description="A sentence for people.")] = ""
    last_transition_time: Annotated[datetime, Meta(description="When status last changed.")]
    observed_generation: Annotated[int, Meta(description="The generation of the spec this speaks of.")] = 0


class ScalingRecord(Part, frozen=True, kw_only=True):
    """One change of the replica count."""

    time: Annotated[datetime, Meta(description="When.")]
    from_replicas: Annotated[int, Meta(description="Replicas before.")]
    to_replicas: Annotated[int, Meta(description="Replicas after.")]
    reason: Annotated[str, Meta(description="One word for machines.")]
    message: Annotated[str, Meta(description="A sentence for people.")]


class ScalingSignals(Part, frozen=True, kw_only=True):
    """What the decision was made from; refreshed at most every 15 seconds."""

    time: Annotated[datetime, Meta(description="When it was measured.")]
    demand: Annotated[float, Meta(description="Load in full replicas, now.")] = 0.0
    average_demand: Annotated[float, Meta(description="The same, averaged over windows.upSeconds.")] = 0.0
    queue_time_seconds: Annotated[float, Meta(description="90th percentile of queue time.")] = 0.0
    num_running: Annotated[int, Meta(description="Requests being computed.")] = 0
    num_waiting: Annotated[int, Meta(description="Requests waiting.")] = 0
    num_pods_reporting: Annotated[int, Meta(description="Pods that answered.")] = 0
    num_pods_silent: Annotated[int, Meta(description="Ready pods that did not answer.")] = 0


class AutoscalingStatus(Part, frozen=True, kw_only=True):
    """What the autoscaler thinks."""

    desired: Annotated[int, Meta(description="Replicas it set.")]
    recommended: Annotated[int, Meta(description="Replicas that demand asks for, before bounds and step limits.")]
    reason: Annotated[str, Meta(description="Why, in one word.")]
    message: Annotated[str, Meta(description="Why, in a sentence.")]
    limited_by: Annotated[str | None, Meta(description="What kept desired from recommended.")] = None
    overridden_since: Annotated[
        datetime | None, Meta(description="When somebody else was seen to have set the Deployment's replicas.")
    ] = None
    signals: Annotated[ScalingSignals | None, Meta(description="What was measured.")] = None
    decisions: Annotated[
        tuple[ScalingRecord, ...],
        Meta(description="The last ten changes, newest first.", extra_json_schema={"x-kubernetes-list-type": "atomic"}),
    ] = ()


class InferenceServiceStatus(Part, frozen=True, kw_only=True):
    """What the operator sees."""

    observed_generation: Annotated[int, Meta(description="The generation of the spec last acted upon.")] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        Meta(
            description="Ready, Progressing, Degraded, ScalingActive, ScalingLimited.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    url: Annotated[str | None, Meta(description="OpenAI-compatible base URL inside the cluster.")] = None
    replicas: Annotated[int | None, Meta(description="Pods there are.")] = None
    ready_replicas: Annotated[int | None, Meta(description="Pods that serve.")] = None
    desired_replicas: Annotated[int | None, Meta(description="Pods there should be.")] = None
    selector: Annotated[str | None, Meta(description="Label selector of the pods, for the scale subresource.")] = None
    image: Annotated[str | None, Meta(description="Image of the pods.")] = None
    update_available: Annotated[
        str | None, Meta(description="Set when this operator would render the pods differently; says how to roll.")
    ] = None
    autoscaling: Annotated[AutoscalingStatus | None, Meta(description="What the autoscaler thinks.")] = None


def decode_status(manifest: Manifest) -> InferenceServiceStatus:
    """The status, or an empty one where it cannot be read: it is ours, and the next write repairs it."""
    try:
        return msgspec.convert(manifest.get("status") or {}, InferenceServiceStatus)
    except msgspec.ValidationError:
        return InferenceServiceStatus()


def encode_status(status: InferenceServiceStatus) -> Manifest:
    """The status as JSON; times in whole seconds, as everywhere in Kubernetes."""
    encoded: Manifest = msgspec.to_builtins(status)
    return encoded
