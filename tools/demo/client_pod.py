"""Streams a chat from a pod of its own, so that it takes the way every client in the cluster takes."""

import json
from pathlib import Path
from typing import Any

from tools.demo.access import Access
from tools.demo.images import Image
from tools.demo.inference_service import NAMESPACE
from tools.demo.stages import follow, read

POD = "demo-client"


def allowed_everywhere() -> dict[str, Any]:
    """What a pod must promise where Pod Security is `restricted`, as a patch of the pod that `kubectl run` makes."""
    container = {
        "name": POD,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {"spec": {"securityContext": pod, "containers": [container]}}


def stream_chat(access: Access, image: Image, url: str, question: str) -> None:
    """Print a chat completion as it comes."""
    remove(access)  # an interrupted run leaves it
    script = (Path(__file__).parent / "chat_in_cluster.py").read_text(encoding="utf-8")
    pod = ["run", POD, "--namespace", NAMESPACE, "--image", image.reference, "--image-pull-policy=IfNotPresent"]
    patch = ["--override-type=strategic", "--overrides", json.dumps(allowed_everywhere())]
    once = ["--restart=Never", "--rm", "--stdin", "--quiet"]
    command = ["--command", "--", "python3", "-c", script, url, question]
    follow([*access.kubectl, *pod, *patch, *once, *command], stdin="attached\n")


def remove(access: Access) -> None:
    read([*access.kubectl, "delete", "pod", POD, "--namespace", NAMESPACE, "--ignore-not-found", "--grace-period=1"])
