"""Uninstalling: nothing of Tidegate stays in the cluster. Runs after all other end-to-end tests."""

from datetime import UTC, datetime

import pytest

from tests.e2e.inference_service import InferenceService
from tests.e2e.kube import Kube
from tests.e2e.leftovers import objects_that_name_us
from tests.e2e.release import NAMESPACE as OPERATOR_NAMESPACE
from tests.e2e.release import Release
from tests.e2e.wait import NotYet, eventually
from tidegate_contract.labels import GROUP, SERVICE_LABEL

pytestmark = pytest.mark.e2e

# The garbage collector looks for new kinds every 30 s; it leaves alone what belongs to a kind that it never saw.
GARBAGE_COLLECTOR_S = 40


def check_garbage_collector_knows_the_kind(service: InferenceService) -> None:
    age_s = (datetime.now(UTC) - datetime.fromisoformat(service.get()["metadata"]["creationTimestamp"])).total_seconds()
    if age_s < GARBAGE_COLLECTOR_S:
        raise NotYet(f"the first InferenceService is {age_s:.0f} s old")


def test_uninstall_removes_resources_pods_and_definition_and_deleted_namespaces_leave_nothing(
    kube: Kube, objects_before: frozenset[str], release: Release, namespace: str, chat: InferenceService
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
    assert objects_that_name_us(kube) - objects_before == set()
