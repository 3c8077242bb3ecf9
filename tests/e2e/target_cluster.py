"""Which cluster the end-to-end tests run on: the one that KUBECONFIG names, or one that tests/cluster starts here."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.kube.image_build import TARGETS
from tests.cluster.kube.lifecycle import check
from tests.cluster.kube.paths import cache_root, own_cluster
from tests.cluster.kube.spec import DEFAULT_NAME
from tests.e2e.kube import Kube

REPOSITORY = Path(__file__).parents[2]
CLUSTER = REPOSITORY / "tests" / "cluster" / "cluster.py"

# Starting includes building Kubernetes and the images the first time: some twenty minutes on two cores.
START_TIMEOUT_S = 3600


@dataclass(frozen=True, slots=True)
class TargetCluster:
    kube: Kube
    helm: Path
    scratch: bool
    """Started by tests/cluster, for tests only: what an earlier run left there may be replaced."""


def find_target_cluster(folder: Path) -> TargetCluster:
    """The cluster of the user's choice, or a running one of our own with both images loaded.

    Args:
        folder: private and empty; keeps the user's cluster as it is now, so that a change of context during the tests
            does not move them to another cluster.

    Raises:
        AssertionError: a tool is missing, or the cluster did not start; says what to do.
        ClusterError: this machine cannot have a cluster; says why.
    """
    name = own_cluster_name(os.environ, cache_root())
    if name is None:
        kubectl, kubeconfig = _tool("kubectl"), folder / "kubeconfig"
        show = [str(kubectl), "config", "view", "--minify", "--flatten", "--raw"]
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(subprocess.run(show, stdout=subprocess.PIPE, text=True, check=True).stdout)
        return TargetCluster(Kube(kubectl, kubeconfig), _tool("helm"), scratch=False)
    check(name, TARGETS)
    # The last line is the answer; what comes before it is progress.
    env = json.loads(_cluster("up", "--json", "--name", name).splitlines()[-1])
    for command in ("build-images", "load-images"):
        _cluster(command, "--name", name)
    path = os.pathsep.join(env["path"])
    return TargetCluster(Kube(_tool("kubectl", path), Path(env["kubeconfig"])), _tool("helm", path), scratch=True)


def own_cluster_name(environment: Mapping[str, str], cache: Path) -> str | None:
    """The cluster of tests/cluster to use; None when KUBECONFIG names one of the user's."""
    kubeconfig = environment.get("KUBECONFIG", "")
    return own_cluster(kubeconfig, cache) if kubeconfig else DEFAULT_NAME


def _tool(name: str, path: str | None = None) -> Path:
    found = shutil.which(name, path=path)
    assert found is not None, f"{name} must be installed to use the cluster that KUBECONFIG names"
    return Path(found)


def _cluster(*command: str) -> str:
    # Its progress goes to our stderr as it comes, so that nobody wonders during the first, long run.
    done = subprocess.run(
        [sys.executable, str(CLUSTER), *command],
        stdout=subprocess.PIPE,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (
        f"`{CLUSTER.name} {' '.join(command)}` ended with status {done.returncode}:\n{done.stdout}"
    )
    return done.stdout
