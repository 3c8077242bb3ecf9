"""A Kubernetes cluster as the tests speak to it: the real kubectl, one kubeconfig, answers as JSON."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]

CALL_TIMEOUT_S = 120


class KubectlError(Exception):
    """kubectl refused; the text is what it wrote on stderr."""


@dataclass(frozen=True, slots=True)
class Kube:
    """One cluster, through kubectl."""

    kubectl: Path
    kubeconfig: Path

    def command(self, *args: str) -> list[str]:
        return [str(self.kubectl), "--kubeconfig", str(self.kubeconfig), *args]

    def run(self, *args: str, stdin: str | None = None, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """Run kubectl and give its stdout.

        Raises:
            KubectlError: it ended with another status than 0.
        """
        done = subprocess.run(
            self.command(*args), input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode != 0:
            raise KubectlError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def get(self, kind: str, name: str, namespace: str) -> Json:
        found: Json = json.loads(self.run("get", kind, name, "-n", namespace, "-o", "json"))
        return found

    def find(self, kind: str, name: str, namespace: str) -> Json | None:
        out = self.run("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        return json.loads(out) if out.strip() else None

    def list_objects(self, kind: str, namespace: str, *, selector: str = "") -> list[Json]:
        found: Json = json.loads(self.run("get", kind, "-n", namespace, "-l", selector, "-o", "json"))
        return list(found["items"])

    def apply(self, *manifests: Json) -> str:
        """Apply as a user does; JSON is YAML too."""
        return self.run("apply", "-f", "-", stdin="\n---\n".join(json.dumps(m) for m in manifests))

    def delete(self, kind: str, name: str, namespace: str, *, wait_s: int = 90) -> None:
        self.run("delete", kind, name, "-n", namespace, "--ignore-not-found", f"--timeout={wait_s}s")

    def create_namespace(self, name: str) -> None:
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def delete_namespace(self, name: str, *, wait_s: int = 120) -> None:
        self.run("delete", "namespace", name, "--ignore-not-found", f"--timeout={wait_s}s", timeout_s=wait_s + 30)

    def describe(self, kind: str, name: str, namespace: str) -> str:
        return self.run("describe", kind, name, "-n", namespace)

    def pod_http(self, pod: str, namespace: str, port: int, path: str) -> str:
        """GET from a pod's port through the API server's proxy: no route to the pod network is needed."""
        return self.run("get", "--raw", f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}")
