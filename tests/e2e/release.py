"""The chart as the tests install it: the real helm, the chart's own defaults."""

import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from tests.e2e.target_cluster import REPOSITORY, TargetCluster

CHART = REPOSITORY / "charts" / "tidegate"
RELEASE = "tidegate"
NAMESPACE = "tidegate-system"
OPERATOR = "tidegate-operator"
INSTALL_TIMEOUT_S = 180
HELM_ARGS = "TIDEGATE_E2E_HELM_ARGS"


def helm_args(environment: Mapping[str, str], *, scratch: bool) -> list[str]:
    """What helm is told beside the chart's defaults.

    Raises:
        AssertionError: nobody said where the nodes of a user's cluster find the images.
    """
    args = shlex.split(environment.get(HELM_ARGS, ""))
    assert scratch or args, (
        "the nodes of the cluster that KUBECONFIG names do not have the images that the chart installs by default; "
        f"push both to a registry and say where: {HELM_ARGS}='--set operator.image.repository=registry.example.com/ai/"
        "tidegate-operator,server.image.repository=registry.example.com/ai/tidegate-server' (README.md, Tests)"
    )
    return args


@dataclass(frozen=True, slots=True)
class Release:
    """One installed release of the chart."""

    cluster: TargetCluster

    def check_cluster(self) -> None:
        """Refuse a cluster of the user's that these tests cannot run on.

        Raises:
            AssertionError: it has Tidegate already, or nobody said where its nodes find the images.
        """
        if self.cluster.scratch:
            return
        helm_args(os.environ, scratch=False)
        existing = self.cluster.kube.run(
            "get", "crd", "inferenceservices.tidegate.dev", "--ignore-not-found", "-o", "name"
        )
        assert not existing.strip(), (
            "the cluster that KUBECONFIG names has Tidegate already; these tests end by uninstalling it with all "
            "InferenceServices, so they need a cluster without it"
        )

    def remove_earlier(self) -> None:
        """Remove what an earlier run left on a scratch cluster, since its pods run images built then."""
        if self.cluster.scratch and self.helm("list", "--all", "--short").strip():
            self.uninstall()
            self.cluster.kube.delete_namespace(NAMESPACE)

    def install(self) -> None:
        wait = ["--wait", f"--timeout={INSTALL_TIMEOUT_S}s"]
        extra = helm_args(os.environ, scratch=self.cluster.scratch)
        self.helm("upgrade", "--install", RELEASE, str(CHART), "--create-namespace", *wait, *extra)

    def uninstall(self) -> None:
        self.helm("uninstall", RELEASE, "--ignore-not-found", "--wait", "--timeout=120s")

    def helm(self, *args: str) -> str:
        command = [str(self.cluster.helm), "--kubeconfig", str(self.cluster.kube.kubeconfig), "-n", NAMESPACE, *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S + 60, check=False)
        assert done.returncode == 0, f"helm {' '.join(args)} failed: {done.stderr}"
        return done.stdout

    def server_image(self) -> str:
        """The image that the installed operator gives to pods."""
        operator = self.cluster.kube.get("deployment", OPERATOR, NAMESPACE)
        env = {e["name"]: e.get("value", "") for e in operator["spec"]["template"]["spec"]["containers"][0]["env"]}
        return str(env["TIDEGATE_OPERATOR_SERVER_IMAGE"])
