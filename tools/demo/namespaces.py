"""The namespaces that the demo makes, labelled as its own: those that were there before stay when it goes."""

import json

from tools.demo.access import Access
from tools.demo.stages import read

LABEL = "app.kubernetes.io/managed-by"
MANAGER = "tidegate-demo"


def ensure_namespace(access: Access, name: str) -> None:
    """Make a namespace unless it is there."""
    if access.get("get", "namespace", name, "--ignore-not-found", "--output=name").strip():
        return
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {LABEL: MANAGER}}}
    read([*access.kubectl, "create", "-f", "-"], stdin=json.dumps(manifest))


def remove_namespace(access: Access, name: str) -> str:
    """Remove a namespace if the demo has made it; gives what kubectl says."""
    by_us = ["--selector", f"{LABEL}={MANAGER}", "--field-selector", f"metadata.name={name}"]
    if not access.get("get", "namespace", *by_us, "--output=name").strip():
        return ""
    return access.get("delete", "namespace", name)
