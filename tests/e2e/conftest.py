"""One cluster, one release of the chart and one served model for all end-to-end tests."""

from collections.abc import Generator, Iterator

import pytest

from tests.e2e.client_pod import ClientPod, start_client_pod
from tests.e2e.failure_report import failure_report
from tests.e2e.inference_service import RESOURCE, InferenceService, manifest
from tests.e2e.kube import Kube
from tests.e2e.leftovers import objects_that_name_us
from tests.e2e.release import NAMESPACE as OPERATOR_NAMESPACE
from tests.e2e.release import Release
from tests.e2e.target_cluster import TargetCluster, find_target_cluster
from tests.e2e.wait import NotYet, eventually
from tidegate_contract.labels import SERVICE_LABEL

NAMESPACE = "tidegate-e2e"
TARGET: pytest.StashKey[TargetCluster] = pytest.StashKey()


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TargetCluster:
    cluster = find_target_cluster(tmp_path_factory.mktemp("cluster"))
    request.config.stash[TARGET] = cluster
    return cluster


@pytest.fixture(scope="session")
def kube(target: TargetCluster) -> Kube:
    return target.kube


@pytest.fixture(scope="session")
def objects_before(target: TargetCluster) -> frozenset[str]:
    """What speaks of Tidegate without being of these tests, such as the namespace of `make demo`."""
    release = Release(target)
    release.check_cluster()
    remove_namespace(target.kube)
    release.remove_earlier()
    return objects_that_name_us(target.kube)


@pytest.fixture(scope="session")
def release(target: TargetCluster, objects_before: frozenset[str]) -> Iterator[Release]:
    """The chart, installed; uninstalled at the end unless a test has done so."""
    release = Release(target)
    release.install()
    yield release
    release.uninstall()
    target.kube.delete_namespace(OPERATOR_NAMESPACE)


@pytest.fixture(scope="session")
def namespace(kube: Kube, release: Release) -> Iterator[str]:
    """Where the tests' resources live; empty at the start."""
    kube.create_namespace(NAMESPACE)
    yield NAMESPACE
    remove_namespace(kube)


def remove_namespace(kube: Kube) -> None:
    """Remove the namespace with what is in it.

    The pods first: a namespace that still holds some when it is deleted is not looked at again before half of their
    grace period is over, however soon they end.
    """
    if RESOURCE in kube.run("api-resources", "-o", "name"):
        kube.run("delete", RESOURCE, "--all", "-n", NAMESPACE)

    def pods_gone() -> None:
        if left := kube.run("get", "pods", "-n", NAMESPACE, "-l", SERVICE_LABEL, "-o", "name").split():
            raise NotYet(f"still there: {left}")

    eventually(pods_gone, within_s=120)
    kube.delete_namespace(NAMESPACE)


@pytest.fixture(scope="session")
def client_pod(kube: Kube, release: Release, namespace: str) -> ClientPod:
    return start_client_pod(kube, namespace, release.server_image())


@pytest.fixture(scope="session")
def chat(kube: Kube, namespace: str) -> InferenceService:
    """A served model of one pod, shared by every test that leaves it serving."""
    service = InferenceService(kube, "chat", namespace)
    kube.apply(manifest(service.name, namespace, replicas=1))
    service.wait_until_ready()
    return service


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The test that uninstalls everything goes last, whatever the file names."""
    items.sort(key=lambda item: item.path.name == "test_uninstall.py")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the cluster to the report of a failed test."""
    report = yield
    target = item.config.stash.get(TARGET, None)
    if report.failed and target is not None and item.get_closest_marker("e2e") is not None:
        report.sections.append(("cluster", failure_report(target.kube, (NAMESPACE,), OPERATOR_NAMESPACE)))
    return report
