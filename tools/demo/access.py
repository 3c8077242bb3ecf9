"""The command line tools for one cluster: which kubectl and helm, and how they find it."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from tools.demo.stages import REPOSITORY, StageFailed, read
from tools.demo.target import ImageRoute, Target

CLUSTER = (sys.executable, REPOSITORY / "tests" / "cluster" / "cluster.py")


@dataclass(frozen=True, slots=True)
class Access:
    """kubectl and helm, each with what points it at the cluster."""

    kubectl: tuple[str, ...]
    helm: tuple[str, ...]
    shell_setup: str  # what a person types first to look around

    def get(self, *arguments: str) -> str:
        """What kubectl says to these arguments."""
        return read([*self.kubectl, *arguments])


def current_context() -> str | None:
    """The context kubectl points at, if its cluster answers."""
    if shutil.which("kubectl") is None:
        return None
    asked = subprocess.run(["kubectl", "config", "current-context"], capture_output=True, text=True)
    if asked.returncode != 0 or not asked.stdout.strip():
        return None
    answers = subprocess.run(["kubectl", "version", "--request-timeout=5s"], capture_output=True)
    return asked.stdout.strip() if answers.returncode == 0 else None


def access_to(target: Target) -> Access:
    """Tools for the target; for tests/cluster the ones built with it.

    Raises:
        StageFailed: a tool is not installed.
    """
    if target.route is ImageRoute.TEST_CLUSTER:
        running = json.loads(read([*CLUSTER, "up", "--json"]))
        tools = os.pathsep.join(running["path"])
        kubeconfig = f"--kubeconfig={running['kubeconfig']}"
        return Access(
            kubectl=(shutil.which("kubectl", path=tools) or "kubectl", kubeconfig),
            helm=(shutil.which("helm", path=tools) or "helm", kubeconfig),
            shell_setup='eval "$(python3 tests/cluster/cluster.py env)"',
        )
    missing = [tool for tool in ("kubectl", "helm") if shutil.which(tool) is None]
    if missing:
        raise StageFailed(f"{' and '.join(missing)} must be installed to use the cluster {target.context!r}")
    context = target.context or ""
    return Access(
        kubectl=("kubectl", f"--context={context}"),
        helm=("helm", f"--kube-context={context}"),
        shell_setup=f"kubectl config use-context {context}",
    )
