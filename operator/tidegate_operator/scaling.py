"""The autoscaler inside a plan: who may set replicas, what is decided, which pod leaves, what status keeps of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from tidegate_operator.autoscale import Decision, Limit, Reason, Scene, autoscale
from tidegate_operator.demand import Sample
from tidegate_operator.deployments import Deployment
from tidegate_operator.observed import Observed
from tidegate_operator.pods import Pod
from tidegate_operator.resource import AutoscalingSpec, InferenceService, ScalingMode
from tidegate_operator.resource_status import AutoscalingStatus, ScalingRecord, ScalingSignals

FOREIGN_HOLD: Final = timedelta(minutes=10)  # how long somebody else's scaling is left alone
UNSCHEDULABLE_PATIENCE: Final = timedelta(minutes=5)  # a cluster autoscaler brings a node within this
MAX_RECORDS: Final = 10
SIGNALS_EVERY: Final = timedelta(seconds=15)  # each write of status wakes every watcher of the resource


class Control(StrEnum):
    """Whether the autoscaler acts, as the reason of the condition ScalingActive."""

    SCALING = "Scaling"
    FIXED = "FixedReplicas"
    ADVISORY = "Advisory"
    PAUSED = "Paused"
    OVERRIDDEN = "ScaledByOther"
    BLIND = "NoData"


@dataclass(frozen=True, slots=True)
class Scaling:
    """What the plan does about replicas."""

    control: Control
    control_message: str
    replicas: int  # there should be
    limited_by: Limit | None = None
    record: ScalingRecord | None = None  # a change that is made now
    takes_over: bool = False  # from somebody else who scaled: own the count as it is
    victims: tuple[Pod, ...] = ()  # the pods that should leave, when fewer are wanted
    status: AutoscalingStatus | None = None


def plan_scaling(resource: InferenceService, observed: Observed, now: datetime) -> Scaling:
    policy = resource.spec.autoscaling
    if policy is None:
        replicas = 1 if resource.spec.replicas is None else resource.spec.replicas
        return Scaling(Control.FIXED, "spec.replicas is a fixed number", replicas)
    scene = _scene(resource, policy, observed, now)
    before = resource.status.autoscaling
    records = before.decisions if before is not None else ()
    decision = autoscale(policy, scene, observed.samples, records, now)
    hold = _hold(observed.deployment, before, now)
    control, message = _control(policy, hold)
    if control is Control.SCALING and decision.reason is Reason.NO_DATA and scene.num_ready > 0:
        control, message = Control.BLIND, decision.message
    if control is not Control.SCALING:
        decision = replace(decision, desired=scene.replicas, limited_by=None)
    record = _record(scene, decision, now) if decision.desired != scene.replicas else None
    num_leaving = max(0, scene.replicas - decision.desired)
    takes_over = control is Control.SCALING and hold is not None
    return Scaling(
        control=control,
        control_message=message,
        replicas=decision.desired,
        limited_by=decision.limited_by,
        record=record,
        victims=choose_victims(observed.pods, observed.samples, num_leaving),
        takes_over=takes_over,
        status=_status(decision, record, before, hold.since if hold is not None and not takes_over else None),
    )


def choose_victims(pods: Sequence[Pod], samples: Sequence[Sample], num_leaving: int) -> tuple[Pod, ...]:
    """The serving pods with the fewest requests in flight; of equals the youngest, whose cache is the coldest.

    Fewer than are leaving where pods that serve nobody are there: Kubernetes removes those first by itself.
    """
    present = [pod for pod in pods if pod.is_present]
    num_serving = num_leaving - sum(1 for pod in present if not pod.is_ready)
    if num_serving <= 0 or not samples:
        return ()
    in_flight = dict(samples[-1].in_flight)
    known = [pod for pod in present if pod.is_ready and pod.name in in_flight]
    known.sort(key=lambda pod: (in_flight[pod.name], -pod.created_at.timestamp(), pod.name))
    return tuple(known[:num_serving])


def _scene(resource: InferenceService, policy: AutoscalingSpec, observed: Observed, now: datetime) -> Scene:
    deployment = observed.deployment
    present = [pod for pod in observed.pods if pod.is_present]
    deadline = timedelta(seconds=resource.spec.startup_timeout_seconds)
    return Scene(
        replicas=deployment.replicas if deployment is not None else _first_replicas(resource, policy),
        num_ready=sum(1 for pod in present if pod.is_ready),
        num_pending=sum(1 for pod in present if not pod.is_ready and _is_hopeful(pod, deadline, now)),
        is_rolling=deployment is None or deployment.is_rolling,
    )


def _first_replicas(resource: InferenceService, policy: AutoscalingSpec) -> int:
    """Of a Deployment that is yet to be made: as many as there were before it was lost, or the fewest allowed."""
    before = resource.status.desired_replicas or 0
    return min(max(before, policy.min_replicas), policy.max_replicas)


def _is_hopeful(pod: Pod, deadline: timedelta, now: datetime) -> bool:
    """Whether a pod that does not serve yet counts as capacity to come."""
    if pod.unschedulable is not None:
        return now - (pod.unschedulable_since or pod.created_at) <= UNSCHEDULABLE_PATIENCE
    return now - pod.created_at <= deadline


@dataclass(frozen=True, slots=True)
class _Hold:
    """Somebody else set the replicas."""

    manager: str
    since: datetime  # when we saw it first: Kubernetes does not date changes made through the scale subresource
    is_over: bool


def _hold(deployment: Deployment | None, before: AutoscalingStatus | None, now: datetime) -> _Hold | None:
    manager = deployment.foreign_scaler if deployment is not None else None
    if manager is None:
        return None
    seen = before.overridden_since if before is not None else None
    since = seen if seen is not None else now.replace(microsecond=0)
    return _Hold(manager, since, is_over=now - since > FOREIGN_HOLD)


def _control(policy: AutoscalingSpec, hold: _Hold | None) -> tuple[Control, str]:
    match policy.mode:
        case ScalingMode.PAUSED:
            return Control.PAUSED, "autoscaling.mode is Paused: replicas stay as they are"
        case ScalingMode.ADVISORY:
            return Control.ADVISORY, "autoscaling.mode is Advisory: status says what would be done"
        case ScalingMode.ACTIVE:
            pass
    if hold is None or hold.is_over:
        return Control.SCALING, "replicas follow demand"
    message = (
        f"{hold.manager} has set the Deployment's replicas; the autoscaler stands down until "
        f"{hold.since + FOREIGN_HOLD:%H:%M} UTC. If that is an HPA or KEDA, remove it or set replicas instead of "
        "autoscaling"
    )
    return Control.OVERRIDDEN, message


def _record(scene: Scene, decision: Decision, now: datetime) -> ScalingRecord:
    return ScalingRecord(
        time=now.replace(microsecond=0),
        from_replicas=scene.replicas,
        to_replicas=decision.desired,
        reason=decision.reason.value,
        message=decision.message,
    )


def _status(
    decision: Decision,
    record: ScalingRecord | None,
    before: AutoscalingStatus | None,
    overridden_since: datetime | None,
) -> AutoscalingStatus:
    """What status keeps; numbers that only flicker are refreshed now and then, not on every pass."""
    decisions = before.decisions if before is not None else ()
    if record is not None:
        decisions = (record, *decisions)[:MAX_RECORDS]
    fresh = AutoscalingStatus(
        desired=decision.desired,
        recommended=decision.recommended,
        reason=decision.reason.value,
        message=decision.message,
        limited_by=decision.limited_by.value if decision.limited_by is not None else None,
        overridden_since=overridden_since,
        signals=_signals(decision),
        decisions=decisions,
    )
    if before is None or before.signals is None or fresh.signals is None or _story(before) != _story(fresh):
        return fresh
    return before if fresh.signals.time - before.signals.time < SIGNALS_EVERY else fresh


def _story(status: AutoscalingStatus) -> AutoscalingStatus:
    """What a reader acts on, without the numbers that flicker; its change is written at once."""
    return msgspec.structs.replace(status, message="", signals=None)


def _signals(decision: Decision) -> ScalingSignals | None:
    sample = decision.latest
    if sample is None:
        return None
    return ScalingSignals(
        time=sample.at.replace(microsecond=0),
        demand=round(sample.demand, 3),
        average_demand=round(decision.average_demand, 3),
        queue_time_seconds=round(sample.queue_time_s, 2),
        num_running=sample.num_running,
        num_waiting=sample.num_waiting,
        num_pods_reporting=sample.num_reporting,
        num_pods_silent=sample.num_silent,
    )
