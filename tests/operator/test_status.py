"""Each condition, case by case: what is observed goes in, status and reason come out."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from tests.operator.make import NOW, PLATFORM, container, ended, pod, resource, samples
from tidegate_operator.deployments import Deployment
from tidegate_operator.objects.rendering import render
from tidegate_operator.observed import Observed
from tidegate_operator.plan import plan
from tidegate_operator.pods import Pod
from tidegate_operator.resource_status import Condition

SETTLED = Deployment(
    annotations={},
    image="tidegate/server:1",
    replicas=1,
    num_pods=1,
    num_updated=1,
    num_available=1,
    is_observed=True,
    refusal=None,
    missed_deadline=None,
    replicas_owners=(),
)
SCALED: dict[str, Any] = {"autoscaling": {"maxReplicas": 3}}


@dataclass(frozen=True)
class Case:
    id: str
    condition: str
    wants: tuple[str, str]
    deployment: Deployment | None = SETTLED
    pods: tuple[Pod, ...] = (pod(),)
    spec: dict[str, Any] = field(default_factory=dict)
    demand: float | None = None


CRASHED = pod("crashed", ready=False, age_s=1, container=container(last_exit=ended()))
HPA = "kube-controller-manager"

CASES = (
    Case("a pod that serves is ready", "Ready", ("True", "Serving")),
    Case("a service without a pod yet is starting", "Ready", ("False", "Starting"), None, ()),
    Case("a pod that loads is starting", "Ready", ("False", "Starting"), SETTLED, (pod(ready=False),)),
    Case("a pod that leaves does not serve", "Ready", ("False", "Starting"), SETTLED, (pod(is_terminating=True),)),
    Case("a failing pod alone gives its reason", "Ready", ("False", "CrashLoop"), SETTLED, (CRASHED,)),
    Case("an old pod serves while a new one fails", "Ready", ("True", "Serving"), SETTLED, (pod(), CRASHED)),
    Case("and the service is degraded", "Degraded", ("True", "CrashLoop"), SETTLED, (pod(), CRASHED)),
    Case("nothing wrong is not degraded", "Degraded", ("False", "AsExpected")),
    Case("zero replicas are parked", "Ready", ("False", "Parked"), SETTLED, (), {"replicas": 0}),
    Case("no Deployment yet is progress", "Progressing", ("True", "Creating"), None, ()),
    Case("old pods beside new ones are a rollout", "Progressing", ("True", "RollingOut"), replace(SETTLED, num_pods=2)),
    Case(
        "a spec its controller has not seen is a rollout",
        "Progressing",
        ("True", "RollingOut"),
        replace(SETTLED, is_observed=False),
    ),
    Case("fewer ready pods than wanted is progress", "Progressing", ("True", "Starting"), spec={"replicas": 2}),
    Case("more ready pods than wanted is progress", "Progressing", ("True", "ScalingDown"), pods=(pod("a"), pod("b"))),
    Case("all as wanted is settled", "Progressing", ("False", "Settled")),
    Case("a fixed count is not scaled", "ScalingActive", ("False", "FixedReplicas")),
    Case("an autoscaled one is", "ScalingActive", ("True", "Scaling"), spec=SCALED, demand=0.1),
    Case("pods that say nothing leave it blind", "ScalingActive", ("False", "NoData"), spec=SCALED),
    Case("no pod yet is no blindness", "ScalingActive", ("True", "Scaling"), None, (), SCALED),
    Case(
        "an HPA on the Deployment makes it stand down",
        "ScalingActive",
        ("False", "ScaledByOther"),
        replace(SETTLED, replicas_owners=(HPA,)),
        spec=SCALED,
        demand=0.1,
    ),
    Case("demand beyond the maximum is limited", "ScalingLimited", ("True", "MaxReplicas"), spec=SCALED, demand=2.5),
    Case("demand within bounds is not limited", "ScalingLimited", ("False", "WithinLimits"), spec=SCALED, demand=0.1),
    Case(
        "demand below the minimum is limited",
        "ScalingLimited",
        ("True", "MinReplicas"),
        replace(SETTLED, replicas=2),
        spec={"autoscaling": {"minReplicas": 2, "maxReplicas": 3}},
        demand=0.1,
    ),
)


def condition(case: Case) -> Condition:
    subject = resource(**case.spec)
    seen = () if case.demand is None else samples(case.demand, for_s=60)
    annotations = render(subject, PLATFORM, {}).annotations
    deployment = None if case.deployment is None else replace(case.deployment, annotations=annotations)
    observed = Observed(deployment=deployment, pods=case.pods, samples=seen)
    status = plan(subject, observed, PLATFORM, NOW).status
    (found,) = [found for found in status.conditions if found.type == case.condition]
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.condition}: {case.id}")
def test_condition(case: Case) -> None:
    found = condition(case)
    assert (found.status.value, found.reason) == case.wants
    assert found.message
    assert found.observed_generation == 1


def test_status_of_a_condition_that_stays_keeps_its_time() -> None:
    first = plan(resource(), Observed(deployment=SETTLED, pods=(pod(),)), PLATFORM, NOW).status
    later = replace(resource(), status=first, generation=2)
    second = plan(later, Observed(deployment=SETTLED, pods=(pod(),)), PLATFORM, NOW + timedelta(hours=1)).status
    assert [c.last_transition_time for c in second.conditions] == [c.last_transition_time for c in first.conditions]
    assert {c.observed_generation for c in second.conditions} == {2}


@pytest.mark.parametrize(
    ("pods", "told"),
    [
        pytest.param((), "no pod has been made yet", id="none"),
        pytest.param((pod(ready=False, is_terminating=True),), "no pod has been made yet", id="one that leaves"),
        pytest.param((pod(ready=False, scheduled_at=None),), "no node has been chosen yet", id="unscheduled"),
        pytest.param((pod(ready=False, has_sandbox=False),), "volumes and network are being set up", id="set up"),
        pytest.param((pod(ready=False),), "the image is being pulled", id="pulling"),
        pytest.param((pod(ready=False, container=container()),), "the model is being loaded", id="loading"),
        pytest.param(
            (pod("a", ready=False), pod("b", ready=False, container=container(has_started=True))),
            "the server has started and is not ready",
            id="the one that has come furthest speaks",
        ),
    ],
)
def test_what_is_told_of_a_start_follows_the_pods(pods: tuple[Pod, ...], told: str) -> None:
    found = condition(Case("", "Ready", ("", ""), SETTLED, pods))
    assert found.message == f"0 of 1 pods serve; {told}"


def test_very_long_sentence_of_the_scheduler_still_fits() -> None:
    stuck = pod(ready=False, unschedulable="no node; " * 1000)
    status = plan(resource(), Observed(deployment=SETTLED, pods=(stuck,)), PLATFORM, NOW).status
    assert all(len(found.message) <= 4096 for found in status.conditions)
