"""A real API server with its controllers, the CRD, a namespace for each test, and operators as real processes.

There is no kubelet: pods are made and never run. A test says itself that one is ready, and answers for it.
"""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.kube import Json, Kube
from tests.e2e.wait import NotYet, eventually
from tests.operator.control_plane.operator_process import OperatorProcess
from tidegate_operator.crd import crd_yaml

REPOSITORY = Path(__file__).parents[3]
CLUSTER = REPOSITORY / "tests" / "cluster" / "cluster.py"
START_TIMEOUT_S = 3600  # the first time Kubernetes is built


@dataclass(frozen=True, slots=True)
class ControlPlane:
    kube: Kube
    helm: Path


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """Started unless it runs already; left as it was found."""
    was_running = _cluster("status").returncode == 0
    started = _cluster("up", "--json")
    assert started.returncode == 0, started.stdout
    answer = json.loads(started.stdout.splitlines()[-1])
    tools = {name: _tool(name, answer["path"]) for name in ("kubectl", "helm")}
    kube = Kube(tools["kubectl"], Path(answer["kubeconfig"]))
    kube.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=crd_yaml())
    kube.run("wait", "--for=condition=Established", "crd/inferenceservices.tidegate.dev", "--timeout=30s")
    yield ControlPlane(kube, tools["helm"])
    if not was_running:
        _cluster("down")


@pytest.fixture(scope="session")
def kube(control_plane: ControlPlane) -> Kube:
    return control_plane.kube


@contextmanager
def fresh_namespace(kube: Kube) -> Iterator[str]:
    name = f"operator-test-{uuid.uuid4().hex[:8]}"
    kube.create_namespace(name)

    def default_account() -> None:
        # Made by a controller a moment later; pods and tokens need it.
        if kube.find("serviceaccount", "default", name) is None:
            raise NotYet("no default service account")

    eventually(default_account, within_s=30)
    yield name
    kube.run("delete", "namespace", name, "--wait=false")


@pytest.fixture
def namespace(kube: Kube) -> Iterator[str]:
    with fresh_namespace(kube) as name:
        yield name


@dataclass(slots=True)
class Operators:
    """Starts operators that serve one namespace, and ends what a test has left running."""

    kube: Kube
    namespace: str
    log_folder: Path
    started: list[OperatorProcess] = field(default_factory=list)

    def start(
        self, identity: str = "operator-0", *, image: str = "tidegate/server:test", kubeconfig: Path | None = None
    ) -> OperatorProcess:
        log = self.log_folder / f"{identity}-{len(self.started)}.log"
        process = OperatorProcess.start(
            kubeconfig or self.kube.kubeconfig, self.namespace, identity=identity, image=image, log=log
        )
        self.started.append(process)
        return process


@pytest.fixture
def operators(kube: Kube, namespace: str, tmp_path: Path) -> Iterator[Operators]:
    operators = Operators(kube, namespace, tmp_path)
    yield operators
    for process in operators.started:
        process.kill()
        sys.stdout.write(process.log.read_text())


@pytest.fixture
def apply(kube: Kube, namespace: str) -> Iterator[Callable[..., Json]]:
    """Apply an InferenceService of the built-in model, as a user does; all are deleted after the test."""
    names: set[str] = set()

    def apply_spec(name: str = "chat", **spec: object) -> Json:
        manifest: Json = {
            "apiVersion": "tidegate.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"model": {"uri": "builtin://smollm2-135m-instruct"}, **spec},
        }
        names.add(name)
        kube.apply(manifest)
        return manifest

    yield apply_spec
    for name in names:
        kube.delete("infs", name, namespace)


def _cluster(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(CLUSTER), *command, "--control-plane-only"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )


def _tool(name: str, folders: list[str]) -> Path:
    found = [Path(folder) / name for folder in folders if (Path(folder) / name).exists()]
    assert found, f"{name} is not among the cluster's tools in {folders}"
    return found[0]
