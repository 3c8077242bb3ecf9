"""The manifests that users are shown pass the real API server, which knows every field and refuses others."""

import pytest

from tests.e2e.kube import Kube
from tests.e2e.target_cluster import REPOSITORY

pytestmark = pytest.mark.e2e

EXAMPLES = sorted((REPOSITORY / "manifests" / "examples").glob("*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_api_server_takes_the_example(kube: Kube, namespace: str, example: object) -> None:
    assert "inferenceservice" in kube.run("apply", "-n", namespace, "--dry-run=server", "-f", str(example))


def test_api_server_takes_the_plain_manifests(kube: Kube, namespace: str) -> None:
    """For those without Helm; the namespace stays out of it, as a dry run does not make it for what follows."""
    shown = kube.run("apply", "--dry-run=server", "-f", str(REPOSITORY / "manifests" / "install.yaml"))
    assert "customresourcedefinition" in shown
    assert "deployment.apps/tidegate-operator" in shown
