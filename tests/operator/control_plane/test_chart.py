"""What the chart does where there is a cluster to ask: it guards the definition, and its notes name the namespace."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.operator.control_plane.conftest import REPOSITORY, ControlPlane

pytestmark = pytest.mark.control_plane

DEFINITION = "crd/inferenceservices.tidegate.dev"
RELEASE, NAMESPACE = "tidegate", "tidegate-system"
OWNED = (f"meta.helm.sh/release-name={RELEASE}", f"meta.helm.sh/release-namespace={NAMESPACE}")
KEPT = "helm.sh/resource-policy=keep"


@pytest.fixture(autouse=True)
def annotations_removed(control_plane: ControlPlane) -> Iterator[None]:
    yield
    names = [annotation.partition("=")[0] for annotation in (*OWNED, KEPT)]
    control_plane.kube.run("annotate", DEFINITION, *(f"{name}-" for name in names))


def helm(control_plane: ControlPlane, verb: str, *args: str) -> "subprocess.CompletedProcess[str]":
    """Without the definition, and without changing anything."""
    kubeconfig = str(control_plane.kube.kubeconfig)
    release = (RELEASE, str(REPOSITORY / "charts" / "tidegate"), "--namespace", NAMESPACE, "--kubeconfig", kubeconfig)
    command = [str(control_plane.helm), verb, *release, "--dry-run=server", "--set", "crds.install=false", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def upgrade_without_definition(control_plane: ControlPlane) -> "subprocess.CompletedProcess[str]":
    return helm(control_plane, "template", "--is-upgrade", "--kube-version", "1.35")


def test_upgrade_that_would_delete_the_definition_is_refused(control_plane: ControlPlane) -> None:
    control_plane.kube.run("annotate", DEFINITION, *OWNED)
    refused = upgrade_without_definition(control_plane)
    assert refused.returncode != 0
    assert "Upgrade once with crds.keep=true first" in refused.stderr


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param((), id="one that somebody else applied"),
        pytest.param((f"meta.helm.sh/release-name={RELEASE}", "meta.helm.sh/release-namespace=other"), id="another's"),
        pytest.param((*OWNED, KEPT), id="one that helm keeps"),
    ],
)
def test_upgrade_that_leaves_the_definition_is_not(control_plane: ControlPlane, annotations: tuple[str, ...]) -> None:
    if annotations:
        control_plane.kube.run("annotate", DEFINITION, *annotations)
    done = upgrade_without_definition(control_plane)
    assert done.returncode == 0, done.stderr


def test_notes_name_the_namespace_that_is_served(control_plane: ControlPlane) -> None:
    done = helm(control_plane, "install", "--set", "watchNamespaces={team-a}")
    notes = done.stdout.partition("NOTES:")[2]
    for command in ("kubectl apply", "kubectl get infs", "kubectl describe infs", "kubectl port-forward"):
        (line,) = [line for line in notes.splitlines() if command in line]
        assert "-n team-a" in line
