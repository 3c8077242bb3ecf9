"""What a plan holds beside status: children, replicas, the pod that leaves, what goes, and why."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.operator.make import NOW, PLATFORM, container, ended, pod, resource, sample, samples
from tests.operator.test_status import SETTLED
from tidegate_contract.labels import FIELD_MANAGER
from tidegate_operator.cluster import (
    CHILD_KINDS,
    POD_DISRUPTION_BUDGET,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    ObjectRef,
)
from tidegate_operator.errors import Refused
from tidegate_operator.objects.rendering import render
from tidegate_operator.observed import Foreign, Observed
from tidegate_operator.plan import Desired, plan, plan_after_refusal
from tidegate_operator.pods import Pod
from tidegate_operator.resource import InferenceService
from tidegate_operator.resource_status import Condition, ConditionStatus, InferenceServiceStatus

OURS = tuple(ObjectRef(kind, "demo", "chat", f"uid-{kind.name}") for kind in CHILD_KINDS)
SCALED: dict[str, Any] = {"autoscaling": {"maxReplicas": 5, "windows": {"downSeconds": 20}}}


def observed(subject: InferenceService, **changes: Any) -> Observed:
    """Everything there and well."""
    deployment = replace(SETTLED, annotations=render(subject, PLATFORM, {}).annotations)
    return replace(Observed(deployment=deployment, pods=(pod(),), children=OURS), **changes)


def planned(subject: InferenceService, **changes: Any) -> Desired:
    return plan(subject, observed(subject, **changes), PLATFORM, NOW)


def test_when_all_is_well_the_plan_is_the_same_again_and_gives_no_reason() -> None:
    first = planned(resource())
    settled = replace(resource(), status=first.status)
    again = plan(settled, observed(settled), PLATFORM, NOW + timedelta(hours=1))
    assert again.because == ()
    assert again.children == first.children
    assert again.status == first.status
    assert (again.replicas, again.victims, again.remove, again.recheck_after) == (None, (), (), None)


def test_children_that_are_there_are_named_by_their_uid_and_new_ones_are_not() -> None:
    assert all("uid" in child["metadata"] for child in planned(resource()).children)
    assert all("uid" not in child["metadata"] for child in planned(resource(), children=()).children)


def test_child_that_left_the_spec_is_removed_by_its_uid() -> None:
    gone = planned(resource(podDisruptionBudget={"enabled": False})).remove
    assert [(ref.kind.name, ref.uid) for ref in gone] == [("PodDisruptionBudget", "uid-PodDisruptionBudget")]


def condition(desired: Desired, kind: str) -> Condition:
    return next(found for found in desired.status.conditions if found.type == kind)


def foreign(kind: Kind, *, is_leaving: bool = False) -> Foreign:
    return Foreign(ObjectRef(kind, "demo", "chat", "theirs"), "owned by nobody", is_leaving)


def test_nothing_is_made_beside_an_object_of_somebody_else() -> None:
    desired = planned(resource(), foreign=(foreign(SERVICE),))
    assert desired.children == ()
    assert desired.remove == ()
    assert desired.recheck_after is not None
    assert (condition(desired, "Progressing").reason, condition(desired, "Degraded").reason) == ("NameTaken",) * 2


def test_what_is_there_scales_beside_an_object_of_somebody_else() -> None:
    desired = planned(resource(**SCALED), foreign=(foreign(SERVICE),), samples=samples(1.2, for_s=60))
    assert desired.replicas is not None
    assert desired.recheck_after == timedelta(seconds=5)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        pytest.param(
            {"podTemplate": {"serviceAccountName": "chat"}}, SERVICE_ACCOUNT, id="an account of the user's own"
        ),
        pytest.param({"podDisruptionBudget": {"enabled": False}}, POD_DISRUPTION_BUDGET, id="a budget of theirs"),
    ],
)
def test_object_of_a_kind_that_this_spec_does_not_make_is_in_nobodys_way(spec: dict[str, Any], kind: Kind) -> None:
    children = tuple(ref for ref in OURS if ref.kind != kind)
    desired = planned(resource(**spec), children=children, foreign=(foreign(kind),))
    assert kind.name not in [child["kind"] for child in desired.children]
    assert len(desired.children) == 3
    assert condition(desired, "Degraded").reason == "AsExpected"


def test_own_account_that_the_template_still_names_stays() -> None:
    assert planned(resource(podTemplate={"serviceAccountName": "chat"})).remove == ()
    gone = planned(resource(podTemplate={"serviceAccountName": "theirs"})).remove
    assert [ref.kind for ref in gone] == [SERVICE_ACCOUNT]


def test_objects_of_an_earlier_resource_are_waited_for_without_an_alarm() -> None:
    there = Observed(foreign=tuple(foreign(kind, is_leaving=True) for kind in CHILD_KINDS))
    desired = plan(resource(), there, PLATFORM, NOW)
    assert desired.children == ()
    assert desired.recheck_after is not None
    assert condition(desired, "Degraded").status is ConditionStatus.FALSE
    progressing = condition(desired, "Progressing")
    assert (progressing.status, progressing.reason) == (ConditionStatus.TRUE, "Creating")
    assert "earlier objects" in progressing.message
    assert not any(because.is_warning for because in desired.because)


def test_autoscaled_service_is_looked_at_every_five_seconds() -> None:
    assert planned(resource(**SCALED)).recheck_after == timedelta(seconds=5)


def test_replicas_are_applied_only_when_they_change() -> None:
    assert planned(resource(**SCALED), samples=samples(0.1, for_s=60)).replicas is None
    grown = planned(resource(**SCALED), samples=samples(1.2, for_s=60))
    assert grown.replicas is not None
    assert grown.replicas["spec"] == {"replicas": 2}
    assert [because.reason for because in grown.because if because.reason.startswith("Scaled")] == ["ScaledUp"]


def test_replicas_of_a_fixed_count_are_taken_over_before_the_template_drops_them() -> None:
    subject = resource(**SCALED)
    deployment = replace(
        SETTLED,
        annotations=render(subject, PLATFORM, {}).annotations,
        replicas=3,
        replicas_owners=(FIELD_MANAGER,),
    )
    desired = planned(subject, deployment=deployment)
    assert desired.replicas is not None
    assert desired.replicas["spec"] == {"replicas": 3}


def test_least_busy_pod_is_marked_and_an_earlier_mark_taken_back() -> None:
    subject = resource(**SCALED)
    pods = (pod("busy", deletion_cost=-1000), pod("idle"))
    in_flight = (("busy", 3), ("idle", 1))
    deployment = replace(
        SETTLED, annotations=render(subject, PLATFORM, {}).annotations, replicas=2, num_pods=2, num_updated=2
    )
    quiet = samples(0.1, for_s=60, in_flight=in_flight)
    desired = planned(subject, deployment=deployment, pods=pods, samples=quiet)
    assert [(victim.ref.name, victim.deletion_cost) for victim in desired.victims] == [("busy", "0"), ("idle", "-1000")]


def test_lower_maximum_marks_as_many_pods_as_leave() -> None:
    pods = (pod("a"), pod("b"), pod("c"), pod("loads", ready=False))
    in_flight = (("a", 3), ("b", 1), ("c", 2))
    subject = resource(autoscaling={"maxReplicas": 1})
    deployment = replace(SETTLED, annotations=render(subject, PLATFORM, {}).annotations, replicas=4)
    desired = planned(subject, deployment=deployment, pods=pods, samples=samples(0.1, for_s=60, in_flight=in_flight))
    assert desired.replicas is not None
    assert desired.replicas["spec"] == {"replicas": 1}
    assert {victim.ref.name for victim in desired.victims} == {"b", "c"}


def replicas_made(subject: InferenceService) -> int:
    """Of a Deployment that is not there."""
    made = plan(subject, Observed(), PLATFORM, NOW).children[-1]
    return int(made["spec"]["replicas"])


@pytest.mark.parametrize("mode", ["Active", "Advisory", "Paused"])
def test_new_deployment_begins_with_the_minimum(mode: str) -> None:
    assert replicas_made(resource(autoscaling={"minReplicas": 3, "maxReplicas": 5, "mode": mode})) == 3


@pytest.mark.parametrize(("before", "again"), [(4, 4), (9, 5), (0, 1)])
def test_lost_deployment_comes_back_with_the_count_it_had_within_bounds(before: int, again: int) -> None:
    status = InferenceServiceStatus(desired_replicas=before)
    assert replicas_made(replace(resource(**SCALED), status=status)) == again


def test_nobody_is_marked_while_a_pod_that_serves_nobody_is_there() -> None:
    subject = resource(**SCALED)
    deployment = replace(
        SETTLED, annotations=render(subject, PLATFORM, {}).annotations, replicas=2, num_pods=2, num_updated=2
    )
    quiet = samples(0.1, for_s=60, in_flight=(("a", 3),))
    desired = planned(subject, deployment=deployment, pods=(pod("a"), pod("b", ready=False)), samples=quiet)
    assert desired.replicas is not None
    assert desired.victims == ()


def test_rollout_is_told_with_its_reason() -> None:
    subject = resource(engine={"maxNumSeqs": 2})
    desired = plan(subject, observed(resource()), PLATFORM, NOW)
    assert "RollingOut" in [because.reason for because in desired.because]


def test_new_spec_is_not_settled_before_its_template_is_applied() -> None:
    subject = resource(engine={"maxNumSeqs": 2})
    progressing = condition(plan(subject, observed(resource()), PLATFORM, NOW), "Progressing")
    assert (progressing.status, progressing.reason) == (ConditionStatus.TRUE, "RollingOut")


def test_failing_pods_of_an_older_template_may_all_go_when_nothing_serves() -> None:
    def allowed(old: Pod) -> object:
        made = planned(resource(), pods=(old,)).children[-1]
        return made["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"]

    assert allowed(pod(ready=False, template_hash="old", container=container(last_exit=ended()))) == "100%"
    assert allowed(pod(template_hash="old")) == 0


def test_refused_spec_is_no_progress() -> None:
    refused = Refused("unknown field", status=500)
    status, because = plan_after_refusal(resource(), observed(resource()), PLATFORM, refused, NOW)
    states = {found.type: (found.status.value, found.reason) for found in status.conditions}
    assert states["Progressing"] == ("False", "ApplyRefused")
    assert states["Degraded"] == ("True", "ApplyRefused")
    assert any(decision.is_warning for decision in because)


def test_signals_alone_rewrite_status_every_fifteen_seconds_at_most() -> None:
    subject = resource(**SCALED)
    first = planned(subject, samples=(sample(10, 0.10), sample(5, 0.10))).status
    soon = planned(replace(subject, status=first), samples=(sample(5, 0.10), sample(0, 0.11))).status
    assert soon == first
    later = plan(
        replace(subject, status=first),
        observed(subject, samples=(replace(sample(0, 0.12), at=NOW + timedelta(seconds=20)),)),
        PLATFORM,
        NOW + timedelta(seconds=20),
    ).status
    assert later != first
