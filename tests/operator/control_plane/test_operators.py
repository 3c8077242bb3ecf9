"""Operators that come and go: restart, hand-over, an upgrade, an end without them, and with the chart's rights only."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.e2e.kube import Json, Kube
from tests.e2e.wait import NotYet, eventually
from tests.operator.control_plane.conftest import REPOSITORY, ControlPlane, Operators
from tests.operator.control_plane.ready_pods import let_wait_for_volumes
from tests.operator.control_plane.waits import (
    CHILDREN,
    no_children,
    wait_for,
    wait_for_condition,
    wait_for_replicas,
    wait_until_settled,
    wait_until_told,
)

pytestmark = pytest.mark.control_plane

TAKE_OVER_S = 15
POLL_SLACK_S = 4  # of a busy machine


def test_another_operator_with_another_image_rolls_and_writes_nothing(
    kube: Kube, namespace: str, operators: Operators, apply: Callable[..., Json]
) -> None:
    operators.start()
    apply(replicas=1)
    wait_for(kube, namespace, "deployment")
    wait_until_settled(kube, namespace, 1)
    versions = resource_versions(kube, namespace)
    # A second operator looks at everything anew, and finds nothing to do.
    assert operators.started[0].stop() == 0
    operators.start("operator-1", image="tidegate/server:another").wait_until_leading()
    kube.delete("service", "chat", namespace)
    wait_for(kube, namespace, "service")
    after = resource_versions(kube, namespace)
    assert {kind: version for kind, version in after.items() if kind != "service"} == {
        kind: version for kind, version in versions.items() if kind != "service"
    }


def resource_versions(kube: Kube, namespace: str) -> dict[str, str]:
    """Of all children; where there is a status that others write, the generation, which only a new spec changes."""
    found = {kind: kube.get(kind, "chat", namespace)["metadata"] for kind in CHILDREN}
    return {kind: str(metadata.get("generation", metadata["resourceVersion"])) for kind, metadata in found.items()}


def test_deleting_the_resource_leaves_nothing_even_without_an_operator(
    kube: Kube, namespace: str, operators: Operators, apply: Callable[..., Json]
) -> None:
    operator = operators.start()
    apply()
    for kind in CHILDREN:
        wait_for(kube, namespace, kind)
    operator.kill()
    kube.delete("infs", "chat", namespace, wait_s=10)
    eventually(lambda: no_children(kube, namespace), within_s=60)


def test_standby_takes_over_from_a_killed_leader_in_time(
    kube: Kube, namespace: str, operators: Operators, apply: Callable[..., Json]
) -> None:
    first = operators.start("first")
    first.wait_until_leading()
    second = operators.start("second")
    second.wait_until("lease_awaited")
    apply()
    wait_for(kube, namespace, "deployment")
    first.kill()
    killed_at = time.monotonic()
    second.wait_until_leading(within_s=TAKE_OVER_S + POLL_SLACK_S)
    assert time.monotonic() - killed_at < TAKE_OVER_S + POLL_SLACK_S
    kube.delete("service", "chat", namespace)
    wait_for(kube, namespace, "service")


def test_leader_that_ends_in_order_gives_the_lease_back(kube: Kube, namespace: str, operators: Operators) -> None:
    first = operators.start("first")
    first.wait_until_leading()
    assert first.stop() == 0
    assert kube.get("lease", "tidegate-operator", namespace)["spec"]["holderIdentity"] == ""


def test_rights_that_the_chart_grants_are_enough(
    control_plane: ControlPlane, namespace: str, operators: Operators, apply: Callable[..., Json], tmp_path: Path
) -> None:
    kube = control_plane.kube
    kubeconfig = grant_what_the_chart_grants(control_plane, namespace, tmp_path)
    operators.start(kubeconfig=kubeconfig).wait_until_leading()
    apply(autoscaling={"minReplicas": 2, "maxReplicas": 3}, podTemplate={"serviceAccountName": "default"})
    wait_for(kube, namespace, "deployment")
    wait_for_replicas(kube, namespace, 2)
    wait_until_told(kube, namespace, "Created")
    let_wait_for_volumes(kube, namespace)
    degraded = wait_for_condition(kube, namespace, "Degraded", "True")
    assert degraded["reason"] == "VolumeNotReady"
    assert 'configmap "nope" not found' in degraded["message"]
    apply(podDisruptionBudget={"enabled": False})
    eventually(lambda: _none(kube, "poddisruptionbudget", namespace), within_s=20)
    assert "forbidden" not in operators.started[0].log.read_text()


def _none(kube: Kube, kind: str, namespace: str) -> None:
    if kube.find(kind, "chat", namespace) is not None:
        raise NotYet(f"{kind} is still there")


def grant_what_the_chart_grants(control_plane: ControlPlane, namespace: str, folder: Path) -> Path:
    """A kubeconfig of a service account with exactly the roles of the chart, for this namespace."""
    kube = control_plane.kube
    rendered = subprocess.run(
        [
            str(control_plane.helm),
            *(
                "template",
                "tidegate",
                str(REPOSITORY / "charts" / "tidegate"),
                "--namespace",
                namespace,
                "--kube-version",
                "1.35",
            ),
            *("--set", f"watchNamespaces={{{namespace}}}", "--set", "crds.install=false"),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    wanted = ("ServiceAccount", "Role", "RoleBinding")
    manifests = [found for found in yaml.safe_load_all(rendered) if found and found["kind"] in wanted]
    kube.apply(*manifests)
    (account,) = [found["metadata"]["name"] for found in manifests if found["kind"] == "ServiceAccount"]
    token = kube.run("create", "token", account, "-n", namespace).strip()
    config = yaml.safe_load(kube.kubeconfig.read_text())
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path
