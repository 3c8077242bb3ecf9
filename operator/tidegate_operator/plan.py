"""What should be, from what the user wants and what is: pure, and the same again when nothing has changed."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tidegate_contract import labels
from tidegate_operator.autoscale import TICK
from tidegate_operator.cluster import POD, SERVICE_ACCOUNT, Kind, Manifest, ObjectRef, kind_of
from tidegate_operator.deployments import Deployment
from tidegate_operator.errors import Refused
from tidegate_operator.failures import Failure, find_failure
from tidegate_operator.objects.deployment import build_deployment, build_replicas
from tidegate_operator.objects.pod_disruption_budget import build_pod_disruption_budget
from tidegate_operator.objects.rendering import Rendering, render
from tidegate_operator.objects.service import build_service
from tidegate_operator.objects.service_account import build_service_account
from tidegate_operator.observed import Foreign, Observed
from tidegate_operator.platform import Platform
from tidegate_operator.resource import InferenceService
from tidegate_operator.resource_status import ConditionStatus, InferenceServiceStatus
from tidegate_operator.rollout import max_unavailable
from tidegate_operator.scaling import Scaling, plan_scaling
from tidegate_operator.status import DEGRADED, READY, Change, build_status, name_taken

RECHECK_UNSETTLED: Final = timedelta(seconds=15)  # pods' troubles can change without an event of theirs
SCALED_UP: Final = "ScaledUp"
SCALED_DOWN: Final = "ScaledDown"
VICTIM_DELETION_COST: Final = "-1000"  # others have 0; the lowest leaves first


@dataclass(frozen=True, slots=True)
class Because:
    """One decision in words: goes to the log and to an Event on the resource."""

    reason: str
    sentence: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Victim:
    """The pod that should go when the Deployment loses a replica."""

    ref: ObjectRef
    deletion_cost: str


@dataclass(frozen=True, slots=True)
class Desired:
    """Everything one reconcile has to make true."""

    children: tuple[Manifest, ...]  # in the order to apply; one with a uid is there already
    replicas: Manifest | None  # applied under the autoscaler's own field manager
    victims: tuple[Victim, ...]  # deletion costs to set, before replicas are lowered
    remove: tuple[ObjectRef, ...]
    status: InferenceServiceStatus
    because: tuple[Because, ...]
    recheck_after: timedelta | None


def plan(resource: InferenceService, observed: Observed, platform: Platform, now: datetime) -> Desired:
    deployment = observed.deployment
    rendering = render(resource, platform, deployment.annotations if deployment is not None else {})
    scaling = plan_scaling(resource, observed, now)
    children = _children(resource, rendering, scaling, observed)
    wanted = {kind_of(child) for child in children}
    in_the_way = [foreign for foreign in observed.foreign if foreign.ref.kind in wanted]
    if in_the_way:
        return _held_back(resource, observed, scaling, in_the_way, platform, now)
    failure = find_failure(resource.spec, deployment, observed.pods, rendering.template_hash)
    rolls = deployment is not None and deployment.template_hash != rendering.template_hash
    change = Change.ROLLOUT if rolls else Change.NONE
    note = _update_note(resource, rendering)
    status = build_status(resource, observed, scaling, failure, change, note, platform, now)
    return Desired(
        children=children,
        replicas=_replicas(resource, deployment, scaling),
        victims=_victims(resource, observed, scaling),
        remove=_unwanted(observed, rendering, wanted),
        status=status,
        because=(
            *_rollout_sentence(deployment, rendering),
            *_scaling_sentence(scaling),
            *_transitions(resource, status),
        ),
        recheck_after=_recheck_after(resource, status, failure),
    )


def _held_back(
    resource: InferenceService,
    observed: Observed,
    scaling: Scaling,
    in_the_way: Sequence[Foreign],
    platform: Platform,
    now: datetime,
) -> Desired:
    """Half a service helps nobody: nothing is made until every name is free. What is there is still scaled."""
    taken = [foreign for foreign in in_the_way if not foreign.is_leaving]
    failure = name_taken(taken) if taken else None
    change = Change.BLOCKED if taken else Change.WAIT
    note = resource.status.update_available
    status = build_status(resource, observed, scaling, failure, change, note, platform, now)
    return Desired(
        children=(),
        replicas=_replicas(resource, observed.deployment, scaling),
        victims=_victims(resource, observed, scaling),
        remove=(),
        status=status,
        because=(*_scaling_sentence(scaling), *_transitions(resource, status)),
        recheck_after=RECHECK_UNSETTLED if resource.spec.autoscaling is None else TICK,
    )


def plan_after_refusal(
    resource: InferenceService, observed: Observed, platform: Platform, error: Refused, now: datetime
) -> tuple[InferenceServiceStatus, tuple[Because, ...]]:
    """The status to write when the API server has refused a child: why, in its own words."""
    failure = Failure(
        "ApplyRefused",
        f"the API server refused an object of this service: {error}",
        "correct the field that it names, or the operator's permissions",
    )
    scaling = plan_scaling(resource, observed, now)
    note = resource.status.update_available
    status = build_status(resource, observed, scaling, failure, Change.BLOCKED, note, platform, now)
    return status, _transitions(resource, status)


def _children(
    resource: InferenceService, rendering: Rendering, scaling: Scaling, observed: Observed
) -> tuple[Manifest, ...]:
    children: list[Manifest] = []
    if resource.spec.pod_template.service_account_name is None:
        children.append(build_service_account(resource))
    children.append(build_service(resource))
    if resource.spec.pod_disruption_budget.enabled:
        children.append(build_pod_disruption_budget(resource))
    # A new Deployment is made with its count at once; from then on the autoscaler's is a field of its own.
    has_count = resource.spec.autoscaling is None or observed.deployment is None
    children.append(
        build_deployment(
            resource,
            rendering,
            replicas=scaling.replicas if has_count else None,
            max_unavailable=max_unavailable(resource.spec, observed.pods, rendering.template_hash),
        )
    )
    for child in children:
        # With the uid an apply changes that very object and never revives one that was deleted meanwhile.
        uid = observed.uid_of(kind_of(child))
        if uid is not None:
            child["metadata"]["uid"] = uid
    return tuple(children)


def _replicas(resource: InferenceService, deployment: Deployment | None, scaling: Scaling) -> Manifest | None:
    """The autoscaler's own apply, when it has something to say.

    From a count in the template, fixed or that of a new Deployment, it takes the present one over first: a field that
    its only owner drops falls back to 1, and with it the service.
    """
    if resource.spec.autoscaling is None or deployment is None:
        return None
    if scaling.record is not None or scaling.takes_over or deployment.is_scaled_by_template:
        return build_replicas(resource, scaling.replicas)
    return None


def _victims(resource: InferenceService, observed: Observed, scaling: Scaling) -> tuple[Victim, ...]:
    """Mark the pods that leave, and unmark those marked for an earlier decision."""
    if not scaling.victims:
        return ()
    marked = [pod for pod in observed.pods if pod.deletion_cost != 0 and pod not in scaling.victims]
    changes = [(pod, "0") for pod in marked] + [(pod, VICTIM_DELETION_COST) for pod in scaling.victims]
    namespace = resource.key.namespace
    return tuple(Victim(ObjectRef(POD, namespace, pod.name, pod.uid), cost) for pod, cost in changes)


def _unwanted(observed: Observed, rendering: Rendering, wanted: Set[Kind]) -> tuple[ObjectRef, ...]:
    """What this spec makes no longer; but an account that the pods still name stays, whoever made it."""
    account = rendering.template["spec"]["serviceAccountName"]
    return tuple(
        ref
        for ref in observed.children
        if ref.kind not in wanted and not (ref.kind == SERVICE_ACCOUNT and ref.name == account)
    )


def _update_note(resource: InferenceService, rendering: Rendering) -> str | None:
    if not rendering.is_outdated:
        return None
    return (
        f"pods run as version {rendering.renderer_version} rendered them; to roll to the present version: kubectl "
        f"annotate infs {resource.key.name} -n {resource.key.namespace} --overwrite "
        f'{labels.ROLL_ANNOTATION}="$(date +%s)"'
    )


def _rollout_sentence(deployment: Deployment | None, rendering: Rendering) -> tuple[Because, ...]:
    if deployment is None:
        return (Because("Created", "made the Deployment, its Service and what belongs to them"),)
    if deployment.template_hash == rendering.template_hash:
        return ()
    if not deployment.template_hash:
        return (Because("RollingOut", "the Deployment had lost its rendering; pods roll to a new one"),)
    return (Because("RollingOut", "the spec has changed what pods run; they are replaced one at a time"),)


def _scaling_sentence(scaling: Scaling) -> tuple[Because, ...]:
    record = scaling.record
    if record is None:
        return ()
    direction = SCALED_UP if record.to_replicas > record.from_replicas else SCALED_DOWN
    sentence = f"from {record.from_replicas} to {record.to_replicas} replicas: {record.message}"
    return (Because(direction, sentence),)


def _transitions(resource: InferenceService, status: InferenceServiceStatus) -> tuple[Because, ...]:
    """A sentence for each change of Ready or Degraded that a person would want to hear of."""
    before = {condition.type: condition for condition in resource.status.conditions}
    sentences: list[Because] = []
    for condition in status.conditions:
        old = before.get(condition.type)
        is_same = old is not None and (old.status, old.reason) == (condition.status, condition.reason)
        if is_same or condition.type not in (READY, DEGRADED):
            continue
        is_true = condition.status is ConditionStatus.TRUE
        if condition.type == DEGRADED and is_true:
            sentences.append(Because(condition.reason, condition.message, is_warning=True))
        elif condition.type == DEGRADED and old is not None and old.status is ConditionStatus.TRUE:
            sentences.append(Because("Recovered", f"no longer {old.reason}"))
        elif condition.type == READY and (old is None or is_true or old.status is ConditionStatus.TRUE):
            sentences.append(Because("Ready" if is_true else "NotReady", condition.message))
    return tuple(sentences)


def _recheck_after(
    resource: InferenceService, status: InferenceServiceStatus, failure: Failure | None
) -> timedelta | None:
    if resource.spec.autoscaling is not None:
        return TICK
    is_settled = failure is None and status.ready_replicas == status.desired_replicas
    return None if is_settled else RECHECK_UNSETTLED
