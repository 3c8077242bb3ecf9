"""Renders the chart with the real helm."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.kube.binaries import HELM, ensure_binaries

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "charts" / "tidegate"
RELEASE = "tidegate"
NAMESPACE = "tidegate-system"
KUBERNETES = "1.35.0"

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]


@pytest.fixture(scope="session")
def helm() -> Path:
    """The pinned one that tests/cluster builds: what a chart renders to depends on helm's version."""
    return ensure_binaries((HELM,)).path("helm")


@pytest.fixture(scope="session")
def run_helm(helm: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(verb: str, *args: str) -> subprocess.CompletedProcess[str]:
        # Away from the developer's own cluster and plugins.
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "KUBECONFIG": "/nonexistent"}
        # helm assumes an old Kubernetes when it is built without a release's flags.
        command = [str(helm), verb, "--kube-version", KUBERNETES, *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)

    return run


@pytest.fixture(scope="session")
def render(run_helm: Callable[..., subprocess.CompletedProcess[str]]) -> Render:
    """`helm template`, parsed: the objects in the order in which helm would install them."""

    def render(*args: str, files: Sequence[Path] = ()) -> list[Manifest]:
        values = [arg for file in files for arg in ("-f", str(file))]
        done = run_helm("template", RELEASE, str(CHART), "-n", NAMESPACE, *values, *args)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document is not None]

    return render
