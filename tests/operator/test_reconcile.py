"""The whole pass on a cluster in memory: what it makes, heals, leaves alone and says."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.operator.fake_cluster import FakeCluster
from tests.operator.make import resource_manifest
from tests.operator.simulation import KEY, Simulation
from tidegate_contract import labels
from tidegate_operator.cluster import (
    CHILD_KINDS,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    POD_DISRUPTION_BUDGET,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Manifest,
    ObjectRef,
)
from tidegate_operator.errors import Refused


def started(**spec: Any) -> Simulation:
    made = Simulation(demand=lambda _: 0.0, startup_s=10)
    made.apply(**spec)
    asyncio.run(made.run(30))
    return made


def settle(run: Simulation) -> None:
    asyncio.run(run.reconciler.reconcile(KEY))


def ref(kind: Kind) -> ObjectRef:
    return ObjectRef(kind, KEY.namespace, KEY.name)


def test_new_resource_gets_its_children_a_url_and_becomes_ready() -> None:
    run = started()
    assert {kind for kind, _, _ in run.cluster.objects} >= set(CHILD_KINDS)
    assert run.status["url"] == "http://chat.demo.svc.cluster.local/v1"
    assert run.status["observedGeneration"] == 1
    assert run.status["selector"] == f"{labels.SERVICE_LABEL}=chat"
    assert (run.status["replicas"], run.status["readyReplicas"], run.status["desiredReplicas"]) == (1, 1, 1)
    states = {condition["type"]: condition["status"] for condition in run.status["conditions"]}
    assert states == {
        "Ready": "True",
        "Progressing": "False",
        "Degraded": "False",
        "ScalingActive": "False",
        "ScalingLimited": "False",
    }
    assert all(condition["observedGeneration"] == 1 for condition in run.status["conditions"])


def test_port_other_than_eighty_is_in_the_url() -> None:
    assert started(service={"port": 8080}).status["url"] == "http://chat.demo.svc.cluster.local:8080/v1"


def test_second_pass_changes_nothing() -> None:
    run = started()
    run.cluster.writes.clear()
    settle(run)
    assert run.cluster.writes == []


@pytest.mark.parametrize("kind", CHILD_KINDS, ids=lambda kind: kind.name)
def test_deleted_child_comes_back(kind: Kind) -> None:
    run = started()
    asyncio.run(run.cluster.delete(ref(kind)))
    settle(run)
    assert asyncio.run(run.cluster.get(ref(kind))) is not None


def test_what_somebody_changed_in_a_child_is_changed_back() -> None:
    run = started()
    run.cluster.body(SERVICE, "demo", "chat")["spec"]["selector"] = {labels.SERVICE_LABEL: "other"}
    settle(run)
    assert run.cluster.body(SERVICE, "demo", "chat")["spec"]["selector"] == {labels.SERVICE_LABEL: "chat"}


def test_fixed_replicas_win_over_somebody_who_scales_the_deployment() -> None:
    run = started(replicas=2)
    run.cluster.scale("demo", "chat", 5, "kubectl")
    settle(run)
    assert run.replicas == 2


def test_what_left_the_spec_is_removed() -> None:
    run = started()
    run.apply(podDisruptionBudget={"enabled": False}, podTemplate={"serviceAccountName": "theirs"})
    settle(run)
    present = {kind for kind, _, _ in run.cluster.objects}
    assert POD_DISRUPTION_BUDGET not in present
    assert SERVICE_ACCOUNT not in present
    assert {SERVICE, DEPLOYMENT} <= present


def test_field_that_left_the_spec_leaves_the_child() -> None:
    run = started(service={"annotations": {"a": "b"}})
    run.apply()
    settle(run)
    assert "annotations" not in run.cluster.body(SERVICE, "demo", "chat")["metadata"]


@pytest.mark.parametrize("kind", CHILD_KINDS, ids=lambda kind: kind.name)
def test_object_of_somebody_else_is_never_adopted_and_nothing_is_made_beside_it(kind: Kind) -> None:
    theirs: Manifest = {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {"name": "chat", "namespace": "demo", "labels": {labels.SERVICE_LABEL: "chat"}},
        "spec": {"theirs": True},
    }
    run = Simulation(demand=lambda _: 0.0)
    before = dict(run.cluster.put(theirs))
    run.apply()
    settle(run)
    assert run.cluster.body(kind, "demo", "chat") == before
    assert [k for k, _, _ in run.cluster.objects if k in CHILD_KINDS] == [kind]
    degraded = run.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "NameTaken")
    assert f"{kind.name} demo/chat (owned by nobody)" in degraded["message"]

    asyncio.run(run.cluster.delete(ref(kind)))
    settle(run)
    assert run.condition("Degraded")["status"] == "False"


def recreate(run: Simulation, uid: str) -> None:
    """Delete the resource and make it again at once, as `kubectl replace --force` does."""
    asyncio.run(run.cluster.delete(ref(INFERENCE_SERVICE)))
    spec = {"autoscaling": {"maxReplicas": 3}}
    manifest = resource_manifest(**spec)
    manifest["metadata"] = {"name": "chat", "namespace": "demo", "uid": uid}
    run.cluster.put(manifest)


def test_objects_left_by_an_earlier_resource_of_the_same_name_are_waited_for_and_not_adopted() -> None:
    run = started()
    recreate(run, "another")
    before = run.deployment
    settle(run)
    assert run.deployment == before
    assert (run.condition("Progressing")["reason"], run.condition("Degraded")["status"]) == ("Creating", "False")
    assert run.condition("Ready")["status"] == "False"  # the earlier one's pods are not ours
    run.cluster.collect_garbage()
    settle(run)
    assert run.deployment["metadata"]["ownerReferences"][0]["uid"] == "another"


def test_object_that_is_being_deleted_is_waited_for() -> None:
    run = Simulation(demand=lambda _: 0.0)
    metadata = {"name": "chat", "namespace": "demo", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    run.cluster.put({"apiVersion": "v1", "kind": "Service", "metadata": metadata})
    run.apply()
    settle(run)
    assert run.condition("Degraded")["status"] == "False"
    assert "earlier objects" in run.condition("Progressing")["message"]


def test_load_of_an_earlier_resource_of_the_same_name_is_forgotten() -> None:
    run = started(autoscaling={"maxReplicas": 3})
    recreate(run, "another")
    run.cluster.collect_garbage()
    run.silent = run.pod_names()
    settle(run)
    assert "signals" not in run.status["autoscaling"]


def test_deleted_resource_leaves_nothing_for_garbage_collection_to_wait_for() -> None:
    run = started(autoscaling={"maxReplicas": 2})
    asyncio.run(run.cluster.delete(ref(INFERENCE_SERVICE)))
    run.cluster.collect_garbage()
    settle(run)
    assert not [kind for kind, _, _ in run.cluster.objects if kind in (*CHILD_KINDS, INFERENCE_SERVICE)]


def test_spec_that_cannot_be_read_is_told_and_leaves_the_pods_as_they_are() -> None:
    run = started()
    deployment = dict(run.deployment)
    run.apply(engine={"dtype": "int3"})
    settle(run)
    degraded = run.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "InvalidSpec")
    assert "spec.engine.dtype" in degraded["message"]
    assert degraded["observedGeneration"] == 2
    assert run.deployment == deployment
    run.apply()
    settle(run)
    assert run.condition("Degraded")["status"] == "False"


class RefusingCluster(FakeCluster):
    async def apply(
        self, manifest: Manifest, *, field_manager: str, force: bool, subresource: str | None = None
    ) -> Manifest:
        if manifest["kind"] == "Deployment":
            raise Refused('Deployment.apps "chat" is invalid: spec.template.spec.tolerations[0].effect', status=422)
        return await super().apply(manifest, field_manager=field_manager, force=force, subresource=subresource)


def test_refusal_of_a_child_is_told_in_the_api_servers_words_and_tried_again() -> None:
    run = Simulation(demand=lambda _: 0.0, cluster=RefusingCluster())
    run.apply(podTemplate={"tolerations": [{"effect": "Never"}]})
    recheck = asyncio.run(run.reconciler.reconcile(KEY))
    assert recheck is not None
    degraded = run.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ApplyRefused")
    assert "tolerations[0].effect" in degraded["message"]
    assert any(event.startswith("ApplyRefused") for event in run.events())


def test_deployment_deleted_under_the_autoscaler_comes_back_as_large_as_it_was() -> None:
    run = Simulation(demand=lambda _: 2.2, startup_s=10)
    run.apply(autoscaling={"maxReplicas": 4})
    asyncio.run(run.run(200))
    assert run.replicas == 4
    asyncio.run(run.cluster.delete(ref(DEPLOYMENT)))
    settle(run)
    assert run.replicas == 4


def test_every_decision_is_an_event_and_a_settled_service_tells_nothing_more() -> None:
    run = started()
    assert [event.partition(":")[0] for event in run.events()] == ["Created", "NotReady", "Ready"]
    asyncio.run(run.run(60))
    assert len(run.events()) == 3


def test_condition_keeps_the_time_of_its_last_change() -> None:
    run = started()
    since = run.condition("Ready")["lastTransitionTime"]
    asyncio.run(run.run(60))
    run.apply(engine={"maxNumSeqs": 2})
    settle(run)
    ready = run.condition("Ready")
    assert (ready["lastTransitionTime"], ready["observedGeneration"]) == (since, 2)


def test_parked_service_says_so() -> None:
    run = started(replicas=0)
    ready = run.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Parked")


def test_loads_are_read_for_autoscaled_services_only_and_once_a_tick() -> None:
    fixed = started(replicas=2)
    assert fixed.asked == 0
    scaled = started(autoscaling={"maxReplicas": 2})
    asked = scaled.asked
    for _ in range(5):
        settle(scaled)
    assert scaled.asked <= asked + 1


def test_operator_restart_writes_nothing() -> None:
    run = started(replicas=2)
    run.cluster.writes.clear()
    run.restart_operator(replace(run.platform))
    settle(run)
    assert run.cluster.writes == []
