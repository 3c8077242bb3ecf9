"""One operator process against the real API server: what it makes, heals, leaves alone and tells."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.kube import Json, Kube
from tests.e2e.wait import NotYet, eventually
from tests.operator.control_plane.conftest import fresh_namespace
from tests.operator.control_plane.operator_process import OperatorProcess
from tests.operator.control_plane.ready_pods import LoadServer, let_fail, pods_of
from tests.operator.control_plane.waits import (
    CHILDREN,
    no_children,
    wait_for,
    wait_for_condition,
    wait_for_decisions,
    wait_for_replicas,
    wait_until_settled,
    wait_until_told,
)
from tidegate_contract import labels

pytestmark = pytest.mark.control_plane


@pytest.fixture(scope="module")
def namespace(kube: Kube) -> Iterator[str]:
    """One for all tests here, so that one operator serves them all."""
    with fresh_namespace(kube) as name:
        yield name


@pytest.fixture(scope="module", autouse=True)
def operator(kube: Kube, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    log = tmp_path_factory.mktemp("operator") / "log"
    image = "tidegate/server:test"
    process = OperatorProcess.start(kube.kubeconfig, namespace, identity="operator-0", image=image, log=log)
    process.wait_until_leading()
    yield process
    process.kill()


@pytest.fixture(autouse=True)
def nothing_left(kube: Kube, namespace: str, apply: Callable[..., Json]) -> Iterator[None]:
    """The next test finds the name free."""
    yield
    kube.delete("infs", "chat", namespace)
    eventually(lambda: no_children(kube, namespace), within_s=60)


def test_children_are_made_owned_and_without_finalizers(kube: Kube, namespace: str, apply: Callable[..., Json]) -> None:
    apply(replicas=2)
    uid = kube.get("infs", "chat", namespace)["metadata"]["uid"]
    for kind in CHILDREN:
        metadata = wait_for(kube, namespace, kind)["metadata"]
        assert [owner["uid"] for owner in metadata["ownerReferences"]] == [uid]
        assert "finalizers" not in metadata
    wait_until_settled(kube, namespace, 2)
    found = kube.get("infs", "chat", namespace)
    assert "finalizers" not in found["metadata"]
    assert set(found["metadata"].get("annotations", {})) <= {"kubectl.kubernetes.io/last-applied-configuration"}
    assert found["status"]["url"] == f"http://chat.{namespace}.svc.cluster.local/v1"
    assert kube.run("get", "infs/chat", "-n", namespace, "--subresource=scale", "-o", "jsonpath={.status}") == (
        json.dumps({"replicas": 2, "selector": f"{labels.SERVICE_LABEL}=chat"}, separators=(",", ":"))
    )


def test_drift_is_undone_and_what_left_the_spec_is_removed(
    kube: Kube, namespace: str, apply: Callable[..., Json]
) -> None:
    apply(service={"annotations": {"a": "b"}})
    wait_for(kube, namespace, "deployment")
    patch = '{"spec":{"template":{"spec":{"containers":[{"name":"server","image":"evil"}]}}}}'
    kube.run("patch", "deployment", "chat", "-n", namespace, "-p", patch)

    def image_is_back() -> None:
        image = kube.get("deployment", "chat", namespace)["spec"]["template"]["spec"]["containers"][0]["image"]
        if image != "tidegate/server:test":
            raise NotYet(f"the image is {image}")

    eventually(image_is_back, within_s=20)
    apply(podDisruptionBudget={"enabled": False})

    def gone() -> None:
        if kube.find("poddisruptionbudget", "chat", namespace) is not None:
            raise NotYet("the budget is still there")
        if "annotations" in kube.get("service", "chat", namespace)["metadata"]:
            raise NotYet("the annotation is still there")

    eventually(gone, within_s=20)


def test_object_of_somebody_else_is_left_alone_until_its_name_is_free(
    kube: Kube, namespace: str, apply: Callable[..., Json]
) -> None:
    kube.run("create", "service", "clusterip", "chat", "--tcp=80:80", "-n", namespace)
    before = kube.get("service", "chat", namespace)
    apply()
    degraded = wait_for_condition(kube, namespace, "Degraded", "True")
    assert degraded["reason"] == "NameTaken"
    assert kube.get("service", "chat", namespace) == before
    assert kube.find("deployment", "chat", namespace) is None
    kube.delete("service", "chat", namespace)
    wait_for(kube, namespace, "deployment")
    wait_until_settled(kube, namespace, 1)
    wait_for_condition(kube, namespace, "Degraded", "False")


@pytest.mark.parametrize(
    ("pod_template", "told"),
    [
        pytest.param({"tolerations": [{"operator": "Sometimes"}]}, "tolerations[0].operator", id="a wrong value"),
        pytest.param({"affinity": {"nodeAfinity": {}}}, "nodeAfinity", id="a field that pods do not have"),
    ],
)
def test_refusal_by_the_api_server_is_told_with_its_words(
    kube: Kube, namespace: str, apply: Callable[..., Json], pod_template: Json, told: str
) -> None:
    apply(podTemplate=pod_template)
    degraded = wait_for_condition(kube, namespace, "Degraded", "True")
    assert degraded["reason"] == "ApplyRefused"
    assert told in degraded["message"]
    wait_until_told(kube, namespace, "ApplyRefused")
    apply()
    wait_for(kube, namespace, "deployment")
    wait_for_condition(kube, namespace, "Ready", "False")


def test_what_users_put_in_place_of_ours_is_taken(kube: Kube, namespace: str, apply: Callable[..., Json]) -> None:
    apply(
        resources={"cpu": "1"},
        podTemplate={
            "env": [{"name": "HOME", "value": "/data"}, {"name": "OMP_NUM_THREADS", "value": "3"}],
            "volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "9Gi"}}],
            "volumeMounts": [{"name": "cache", "mountPath": "/tmp"}],
        },
    )
    pod = wait_for(kube, namespace, "deployment")["spec"]["template"]["spec"]
    assert {"name": "HOME", "value": "/data"} in pod["containers"][0]["env"]
    assert {"name": "cache", "emptyDir": {"sizeLimit": "9Gi"}} in pod["volumes"]


def test_resource_that_is_made_anew_at_once_raises_no_alarm(
    kube: Kube, namespace: str, apply: Callable[..., Json]
) -> None:
    manifest = apply()
    wait_for(kube, namespace, "deployment")
    kube.run("replace", "--force", "-f", "-", stdin=json.dumps(manifest))
    uid = kube.get("infs", "chat", namespace)["metadata"]["uid"]

    def made_anew() -> None:
        deployment = kube.find("deployment", "chat", namespace)
        if deployment is None or deployment["metadata"]["ownerReferences"][0]["uid"] != uid:
            raise NotYet("the earlier Deployment is still there")

    eventually(made_anew, within_s=60)
    wait_until_settled(kube, namespace, 1)
    wait_until_told(kube, namespace, "Created")
    assert "NameTaken" not in kube.run("describe", "infs", "chat", "-n", namespace)


def test_failing_pod_makes_room_for_the_one_of_a_corrected_spec(
    kube: Kube, namespace: str, apply: Callable[..., Json]
) -> None:
    apply(engine={"extraArgs": ["--wrong"]})
    wait_for(kube, namespace, "deployment")
    eventually(lambda: one_pod(kube, namespace), within_s=30)
    let_fail(kube, namespace)
    wait_for_condition(kube, namespace, "Degraded", "True")
    failing = one_pod(kube, namespace)
    apply()

    def replaced() -> None:
        if failing in (pod["metadata"]["name"] for pod in pods_of(kube, namespace)):
            raise NotYet(f"{failing} is still there")

    eventually(replaced, within_s=30)  # though the new pod never becomes ready here
    assert wait_for_condition(kube, namespace, "Degraded", "True")["reason"] == "Unschedulable"  # there are no nodes


def one_pod(kube: Kube, namespace: str) -> str:
    names = [pod["metadata"]["name"] for pod in pods_of(kube, namespace)]
    if len(names) != 1:
        raise NotYet(f"pods: {names}")
    return str(names[0])


@pytest.fixture
def load() -> Iterator[LoadServer]:
    load = LoadServer()
    server = load.start()
    yield load
    server.shutdown()
    server.server_close()


def test_replicas_follow_the_pods_load_and_describe_tells_why(
    kube: Kube, namespace: str, apply: Callable[..., Json], load: LoadServer
) -> None:
    windows = {"upSeconds": 10, "panicSeconds": 10, "downSeconds": 10}
    apply(autoscaling={"maxReplicas": 2, "windows": windows})
    wait_for(kube, namespace, "deployment")
    wait_until_settled(kube, namespace, 1)
    load.num_running, load.num_waiting = 4, 2
    wait_for_replicas(kube, namespace, 2, within_s=60)
    load.num_running, load.num_waiting = 0, 0
    wait_until_settled(kube, namespace, 2)
    wait_for_replicas(kube, namespace, 1, within_s=60)
    wait_until_told(
        kube,
        namespace,
        "from 1 to 2 replicas: demand of",
        "from 2 to 1 replicas: demand stayed at or below",
    )
    wait_for_decisions(kube, namespace, (2, 1), (1, 2))


def test_somebody_elses_scaling_makes_the_autoscaler_stand_down(
    kube: Kube, namespace: str, apply: Callable[..., Json]
) -> None:
    apply(autoscaling={"maxReplicas": 5})
    wait_for(kube, namespace, "deployment")
    wait_for_condition(kube, namespace, "ScalingActive", "True")
    kube.run("scale", "deployment/chat", "--replicas=3", "-n", namespace)
    active = wait_for_condition(kube, namespace, "ScalingActive", "False")
    assert active["reason"] == "ScaledByOther"
    assert "kubectl" in active["message"]
    wait_for_replicas(kube, namespace, 3)


def test_from_fixed_to_autoscaling_and_back_the_count_never_falls(
    kube: Kube, namespace: str, apply: Callable[..., Json]
) -> None:
    apply(replicas=3)
    wait_for(kube, namespace, "deployment")
    wait_until_settled(kube, namespace, 3)
    pods = {pod["metadata"]["uid"] for pod in pods_of(kube, namespace)}
    apply(autoscaling={"maxReplicas": 5})
    wait_for_condition(kube, namespace, "ScalingActive", "False")  # no pod reports a load here
    apply(replicas=3)
    wait_for_condition(kube, namespace, "Progressing", "False")
    assert {pod["metadata"]["uid"] for pod in pods_of(kube, namespace)} == pods
    apply(replicas=2)
    wait_for_replicas(kube, namespace, 2)
