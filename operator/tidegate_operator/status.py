"""Conditions and the rest of status, from what is observed and what is planned; each condition has one writer here."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Final, assert_never

import msgspec

from tidegate_contract import labels
from tidegate_operator.autoscale import Limit
from tidegate_operator.errors import InvalidResource
from tidegate_operator.failures import Failure
from tidegate_operator.objects.service import service_url
from tidegate_operator.observed import Foreign, Observed
from tidegate_operator.platform import Platform
from tidegate_operator.pods import Pod, Stage
from tidegate_operator.resource import InferenceService
from tidegate_operator.resource_status import Condition, ConditionStatus, InferenceServiceStatus
from tidegate_operator.scaling import Control, Scaling

READY: Final = "Ready"
PROGRESSING: Final = "Progressing"
DEGRADED: Final = "Degraded"
SCALING_ACTIVE: Final = "ScalingActive"
SCALING_LIMITED: Final = "ScalingLimited"

MESSAGE_LIMIT: Final = 2000  # characters; a scheduler's sentence about a thousand nodes is longer


class Change(Enum):
    """What this pass does about the pods: the observation was made before it and does not show it."""

    NONE = auto()
    ROLLOUT = auto()  # another template is applied
    WAIT = auto()  # earlier objects of the same name are still going; nothing is applied
    BLOCKED = auto()  # not everything could be applied; the failure says why


@dataclass(frozen=True, slots=True)
class Fact:
    """A condition before it is dated."""

    type: str
    is_true: bool
    reason: str
    message: str


def build_status(
    resource: InferenceService,
    observed: Observed,
    scaling: Scaling,
    failure: Failure | None,
    change: Change,
    update_available: str | None,
    platform: Platform,
    now: datetime,
) -> InferenceServiceStatus:
    deployment = observed.deployment
    num_ready = sum(1 for pod in observed.pods if pod.is_serving)
    facts = (
        _ready(observed, scaling, num_ready, failure),
        _progressing(observed, scaling, num_ready, change, failure),
        _degraded(failure),
        _scaling_active(scaling),
        _scaling_limited(resource, scaling),
    )
    return InferenceServiceStatus(
        observed_generation=resource.generation,
        conditions=dated(facts, resource, now),
        url=service_url(resource, platform),
        replicas=sum(1 for pod in observed.pods if pod.is_present),
        ready_replicas=num_ready,
        desired_replicas=scaling.replicas,
        selector=f"{labels.SERVICE_LABEL}={resource.key.name}",
        image=deployment.image if deployment is not None else None,
        update_available=update_available,
        autoscaling=scaling.status,
    )


def invalid_status(
    before: InferenceServiceStatus, generation: int, error: InvalidResource, now: datetime
) -> InferenceServiceStatus:
    """The status of a resource whose spec cannot be read: what was, and why nothing more is done."""
    message = f"{error}. Hint: correct that field; the pods are left as they are."
    degraded = next((condition for condition in before.conditions if condition.type == DEGRADED), None)
    condition = _dated(Fact(DEGRADED, True, "InvalidSpec", message), degraded, generation, now)
    others = tuple(condition for condition in before.conditions if condition.type != DEGRADED)
    return msgspec.structs.replace(before, conditions=(*others, condition))


def dated(facts: Sequence[Fact], resource: InferenceService, now: datetime) -> tuple[Condition, ...]:
    """Conditions with the time of their last change, which is now unless the resource had the same status already."""
    before = {condition.type: condition for condition in resource.status.conditions}
    return tuple(_dated(fact, before.get(fact.type), resource.generation, now) for fact in facts)


def name_taken(foreign: Sequence[Foreign]) -> Failure:
    """A child's name belongs to somebody else."""
    taken = ", ".join(f"{item.ref} ({item.owner})" for item in foreign)
    return Failure(
        "NameTaken",
        f"not ours and left alone: {taken}",
        "delete or rename that object, or give the InferenceService another name",
    )


def _dated(fact: Fact, before: Condition | None, generation: int, now: datetime) -> Condition:
    status = ConditionStatus.TRUE if fact.is_true else ConditionStatus.FALSE
    is_unchanged = before is not None and before.status is status
    return Condition(
        type=fact.type,
        status=status,
        reason=fact.reason,
        message=fact.message[:MESSAGE_LIMIT],
        last_transition_time=before.last_transition_time
        if before is not None and is_unchanged
        else now.replace(microsecond=0),
        observed_generation=generation,
    )


def _ready(observed: Observed, scaling: Scaling, num_ready: int, failure: Failure | None) -> Fact:
    if num_ready > 0:
        return Fact(READY, True, "Serving", f"{num_ready} of {scaling.replicas} pods serve")
    if failure is not None:
        return Fact(READY, False, failure.reason, failure.sentence)
    if scaling.replicas == 0:
        return Fact(READY, False, "Parked", "replicas is 0: nothing serves until it is raised")
    return Fact(READY, False, "Starting", f"0 of {scaling.replicas} pods serve; {_stage(observed.pods)}")


def _stage(pods: Sequence[Pod]) -> str:
    """What the pod that has come furthest is doing."""
    stage = max((pod.stage for pod in pods if pod.is_present), default=None)
    match stage:
        case None:
            return "no pod has been made yet"
        case Stage.UNSCHEDULED:
            return "no node has been chosen yet"
        case Stage.SETTING_UP:
            return "volumes and network are being set up"
        case Stage.PULLING:
            return "the image is being pulled"
        case Stage.LOADING:
            return "the model is being loaded"
        case Stage.STARTED:
            return "the server has started and is not ready"
        case _:
            assert_never(stage)


def _progressing(observed: Observed, scaling: Scaling, num_ready: int, change: Change, failure: Failure | None) -> Fact:
    if change is Change.WAIT:
        return Fact(PROGRESSING, True, "Creating", "waiting for earlier objects of this name to go")
    if change is Change.BLOCKED and failure is not None:
        return Fact(PROGRESSING, False, failure.reason, "not everything could be applied; pods stay as they are")
    if change is Change.ROLLOUT:
        return Fact(PROGRESSING, True, "RollingOut", "the spec has changed what pods run")
    deployment = observed.deployment
    if deployment is None:
        return Fact(PROGRESSING, True, "Creating", "the Deployment is being made")
    if deployment.is_rolling:
        message = f"{deployment.num_updated} of {deployment.num_pods} pods run the newest revision"
        return Fact(PROGRESSING, True, "RollingOut", message)
    if num_ready < scaling.replicas:
        return Fact(PROGRESSING, True, "Starting", f"{num_ready} of {scaling.replicas} pods serve")
    if num_ready > scaling.replicas:
        return Fact(PROGRESSING, True, "ScalingDown", f"{num_ready} pods serve, {scaling.replicas} will stay")
    return Fact(PROGRESSING, False, "Settled", "all pods run the newest revision")


def _degraded(failure: Failure | None) -> Fact:
    if failure is None:
        return Fact(DEGRADED, False, "AsExpected", "nothing is wrong")
    return Fact(DEGRADED, True, failure.reason, failure.sentence)


def _scaling_active(scaling: Scaling) -> Fact:
    return Fact(SCALING_ACTIVE, scaling.control is Control.SCALING, scaling.control.value, scaling.control_message)


def _scaling_limited(resource: InferenceService, scaling: Scaling) -> Fact:
    policy, limit = resource.spec.autoscaling, scaling.limited_by
    if policy is None or limit is None:
        return Fact(SCALING_LIMITED, False, "WithinLimits", "nothing keeps replicas from what demand asks for")
    match limit:
        case Limit.MAX_REPLICAS:
            message = f"demand asks for more than maxReplicas {policy.max_replicas}: requests may queue"
        case Limit.MIN_REPLICAS:
            message = f"demand asks for fewer than minReplicas {policy.min_replicas}"
        case Limit.STEP:
            message = "demand asks for more than one step may add; the next follows"
    return Fact(SCALING_LIMITED, True, limit.value, message)
