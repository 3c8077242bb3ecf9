"""Uninstalling: nothing of Tidegate stays in the cluster. Runs after all other end-to-end tests."""

import json
from datetime import UTC, datetime

import pytest

from tests.e2e.inference_service import InferenceService
from tests.e2e.kube import Json, Kube
from tests.e2e.release import NAMESPACE as OPERATOR_NAMESPACE
from tests.e2e.release import Release
from tests.e2e.wait import NotYet, eventually
from tidegate_contract.labels import GROUP, SERVICE_LABEL

pytestmark = pytest.mark.e2e

# Kinds that the cluster makes of its own accord and forgets by itself.
PASSING_KINDS = {"events", "events.events.k8s.io", "componentstatuses", "nodes", "leases.coordination.k8s.io"}


# The garbage collector looks for new kinds every 30 s; it leaves alone what belongs to a kind that it never saw.
GARBAGE_COLLECTOR_S = 40


def check_garbage_collector_knows_the_kind(service: InferenceService) -> None:
    age_s = (datetime.now(UTC) - datetime.fromisoformat(service.get()["metadata"]["creationTimestamp"])).total_seconds()
    if age_s < GARBAGE_COLLECTOR_S:
        raise NotYet(f"the first InferenceService is {age_s:.0f} s old")


def objects_that_name_us(kube: Kube) -> list[str]:
    """Every object of every kind in the cluster whose name, namespace or labels speak of Tidegate."""
    kinds = kube.run("api-resources", "--verbs=list", "-o", "name").split()
    found: Json = json.loads(
        kube.run("get", ",".join(sorted(set(kinds) - PASSING_KINDS)), "-A", "-o", "json", "--ignore-not-found")
    )
    return sorted(
        f"{item['kind']} {item['metadata'].get('namespace', '')}/{item['metadata']['name']}"
        for item in found["items"]
        if "tidegate" in json.dumps([item["metadata"].get(key) for key in ("name", "namespace", "labels")])
    )


def test_uninstall_removes_resources_pods_and_definition_and_deleted_namespaces_leave_nothing(
    kube: Kube, release: Release, namespace: str, chat: InferenceService
) -> None:
    assert chat.pods()
    eventually(lambda: check_garbage_collector_knows_the_kind(chat), within_s=GARBAGE_COLLECTOR_S)

    release.uninstall()

    def children_gone() -> None:
        kinds = "deployments,replicasets,pods,services,serviceaccounts,poddisruptionbudgets"
        if left := kube.run("get", kinds, "-n", namespace, "-l", SERVICE_LABEL, "-o", "name").split():
            raise NotYet(f"still there: {left}")

    eventually(children_gone, within_s=120)
    assert GROUP not in kube.run("api-resources", "-o", "name")

    kube.delete_namespace(namespace)
    kube.delete_namespace(OPERATOR_NAMESPACE)
    assert objects_that_name_us(kube) == []
