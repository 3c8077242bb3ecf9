"""The demo's one InferenceService: applied, waited for, removed."""

import json
import time
from collections.abc import Iterable
from typing import Any

from tidegate_contract.labels import SERVICE_LABEL
from tools.demo.access import Access
from tools.demo.namespaces import ensure_namespace
from tools.demo.release import DEFINITION
from tools.demo.stages import REPOSITORY, StageFailed, read, say

NAMESPACE = "tidegate-demo"
NAME = "smollm2"
EXAMPLE = REPOSITORY / "manifests" / "examples" / "smollm2-cpu.yaml"
READY_TIMEOUT_S = 600.0
REMOVED_TIMEOUT_S = 120


def apply_afresh(access: Access) -> None:
    """Apply the example; one of an earlier run goes first, because its pods would keep the image that they run."""
    ensure_namespace(access, NAMESPACE)
    remove(access)
    read([*access.kubectl, "apply", "--namespace", NAMESPACE, "-f", EXAMPLE])


def remove(access: Access) -> str:
    """Remove the resource and wait until its pods are gone; gives what kubectl says.

    Without the wait a new one would find the old one's objects under its name, and a namespace that is deleted with
    pods in it is not looked at again before half of their grace period is over.
    """
    here = ["--namespace", NAMESPACE]
    if not access.get("get", DEFINITION, NAME, *here, "--ignore-not-found", "--output=name").strip():
        return ""
    said = access.get("delete", DEFINITION, NAME, *here)
    selected = ["--selector", f"{SERVICE_LABEL}={NAME}", f"--timeout={REMOVED_TIMEOUT_S}s"]
    access.get("wait", "--for=delete", "deployments,pods", *here, *selected)
    return said


def status(access: Access) -> dict[str, Any]:
    found = json.loads(access.get("get", DEFINITION, NAME, "--namespace", NAMESPACE, "--output=json"))
    return dict(found.get("status", {}))


def wait_until_ready(access: Access) -> None:
    """Show each new reason in the resource's status until it is ready.

    Raises:
        StageFailed: not ready in time; holds what the resource says of itself.
    """
    shown = ""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        conditions = {c["type"]: c for c in status(access).get("conditions", [])}
        ready = conditions.get("Ready")
        if ready is not None:
            line = f"{ready['reason']}: {ready['message']}"
            if line != shown:
                say(f"    {line}")
                shown = line
            if ready["status"] == "True":
                return
        time.sleep(1)
    described = access.get("describe", DEFINITION, NAME, "--namespace", NAMESPACE)
    raise StageFailed(f"{NAME} is not ready after {READY_TIMEOUT_S:.0f} s:\n{described}")


def of_others(access: Access) -> tuple[str, ...]:
    """Every InferenceService of the cluster that is not the demo's, as `namespace/name`."""
    found = json.loads(access.get("get", DEFINITION, "--all-namespaces", "--output=json"))
    return others_among((one["metadata"]["namespace"], one["metadata"]["name"]) for one in found["items"])


def others_among(keys: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(f"{namespace}/{name}" for namespace, name in keys if (namespace, name) != (NAMESPACE, NAME))
