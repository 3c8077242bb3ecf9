"""The chart as the tests install it: the real helm, the chart's own defaults."""

import os
import shlex
import subprocess
from dataclasses import dataclass

from tests.e2e.target_cluster import REPOSITORY, TargetCluster

CHART = REPOSITORY / "charts" / "tidegate"
RELEASE = "tidegate"
NAMESPACE = "tidegate-system"
OPERATOR = "tidegate-operator"
INSTALL_TIMEOUT_S = 180

# For a cluster of one's own, whose nodes pull from a registry:
# TIDEGATE_E2E_HELM_ARGS="--set operator.image.repository=ghcr.io/me/tidegate-operator ..."
EXTRA_ARGS = shlex.split(os.environ.get("TIDEGATE_E2E_HELM_ARGS", ""))


@dataclass(frozen=True, slots=True)
class Release:
    """One installed release of the chart."""

    cluster: TargetCluster

    def install(self) -> None:
        """Install; what an earlier run left on a scratch cluster goes first, since its pods run images built then.

        Raises:
            AssertionError: helm refused, or the cluster of a user already has Tidegate.
        """
        if not self.cluster.scratch:
            existing = self.cluster.kube.run(
                "get", "crd", "inferenceservices.tidegate.dev", "--ignore-not-found", "-o", "name"
            )
            assert not existing.strip(), (
                "the cluster that KUBECONFIG names has Tidegate already; these tests end by uninstalling it with all "
                "InferenceServices, so they need a cluster without it"
            )
        elif self.helm("list", "--all", "--short").strip():
            self.uninstall()
            self.cluster.kube.delete_namespace(NAMESPACE)
        wait = ["--wait", f"--timeout={INSTALL_TIMEOUT_S}s"]
        self.helm("upgrade", "--install", RELEASE, str(CHART), "--create-namespace", *wait, *EXTRA_ARGS)

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
