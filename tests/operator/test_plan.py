"""What a plan holds beside status: children, replicas, the pod that leaves, what goes, and why."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.operator.make import NOW, PLATFORM, pod, resource, sample, samples
from tests.operator.test_status import SETTLED
from tidegate_contract.labels import FIELD_MANAGER
from tidegate_operator.cluster import CHILD_KINDS, DEPLOYMENT, ObjectRef
from tidegate_operator.objects.rendering import render
from tidegate_operator.observed import Foreign, Observed
from tidegate_operator.plan import Desired, plan
from tidegate_operator.resource import InferenceService

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


def test_nothing_is_made_beside_an_object_of_somebody_else() -> None:
    foreign = Foreign(ObjectRef(DEPLOYMENT, "demo", "chat", "theirs"), "owned by nobody")
    desired = planned(resource(), foreign=(foreign,))
    assert desired.children == ()
    assert desired.remove == ()
    assert desired.recheck_after is not None


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
