"""The command line tools for one cluster: which kubectl and helm, and how they find it."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.demo.stages import REPOSITORY, StageFailed, read
from tools.demo.target import Target

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
    context = asked.stdout.strip()
    return context if asked.returncode == 0 and context and answers(context) else None


def answers(context: str) -> bool:
    """Whether the API server of this context can be asked."""
    version = ["kubectl", f"--context={context}", "version", "--request-timeout=5s"]
    return subprocess.run(version, capture_output=True).returncode == 0


def known_contexts() -> tuple[str, ...]:
    """Every context that kubectl has; none without kubectl."""
    if shutil.which("kubectl") is None:
        return ()
    asked = subprocess.run(["kubectl", "config", "get-contexts", "--output=name"], capture_output=True, text=True)
    return tuple(asked.stdout.split())


def require_tools(*tools: str) -> None:
    """Check that these programs are on the PATH.

    Raises:
        StageFailed: some are not; names all of them.
    """
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        raise StageFailed(f"{' and '.join(missing)} must be installed to use a cluster of yours")


def cluster_command(command: str, target: Target, *options: str) -> Sequence[str | Path]:
    """A command of tests/cluster for the target."""
    return [*CLUSTER, command, "--name", target.cluster_name, *options]


def access_to(target: Target) -> Access:
    """Tools for the target; for a cluster of tests/cluster, which must be up, the ones built with it.

    Raises:
        StageFailed: a tool is not installed.
    """
    if target.context is None:
        running = json.loads(read(cluster_command("up", target, "--json")))
        tools = os.pathsep.join(running["path"])
        kubeconfig = f"--kubeconfig={running['kubeconfig']}"
        env = ["python3", "tests/cluster/cluster.py", "env", "--name", target.cluster_name]
        return Access(
            kubectl=(shutil.which("kubectl", path=tools) or "kubectl", kubeconfig),
            helm=(shutil.which("helm", path=tools) or "helm", kubeconfig),
            shell_setup=f'eval "$({shlex.join(env)})"',
        )
    require_tools("kubectl", "helm")
    return Access(
        kubectl=("kubectl", f"--context={target.context}"),
        helm=("helm", f"--kube-context={target.context}"),
        shell_setup=f"kubectl config use-context {target.context}",
    )
