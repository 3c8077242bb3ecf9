"""Read from the API server without kubectl: for waiting, where half a second per question would add up."""

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.kube.errors import ClusterError


class ApiClient:
    """GET, with the admin's token."""

    def __init__(self, url: str, ca_file: Path, token: str) -> None:
        self._url = url
        self._token = token
        context = ssl.create_default_context(cafile=str(ca_file))
        # No proxy from the environment: the API server is on this machine.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

    def get(self, path: str) -> str | None:
        """The body of an answer; None when the server is not there, not ready, or has no such object."""
        request = urllib.request.Request(self._url + path, headers={"Authorization": f"Bearer {self._token}"})
        try:
            with self._opener.open(request, timeout=5) as response:
                body: bytes = response.read()
        except (urllib.error.URLError, OSError):
            return None
        return body.decode()

    def is_ready(self) -> bool:
        return self.get("/readyz") == "ok"

    def has_default_service_account(self) -> bool:
        """Whether pods can be created: before that the API server refuses them."""
        return self.get("/api/v1/namespaces/default/serviceaccounts/default") is not None

    def ready_nodes(self) -> list[str]:
        body = self.get("/api/v1/nodes")
        return ready_node_names(json.loads(body)) if body else []


def ready_node_names(node_list: dict[str, Any]) -> list[str]:
    """The nodes of a NodeList whose condition Ready is true."""
    return [
        node["metadata"]["name"]
        for node in node_list["items"]
        if any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))
    ]


def wait_for(what: str, is_done: Callable[[], bool], why_not: Callable[[], str | None], timeout_s: float = 120) -> None:
    """Ask again and again until it is done.

    Args:
        why_not: names what makes it hopeless (a process that ended), or None to go on.

    Raises:
        ClusterError: it is hopeless, or the time is up.
    """
    deadline = time.monotonic() + timeout_s
    while not is_done():
        reason = why_not()
        if reason is None and time.monotonic() > deadline:
            reason = f"not within {timeout_s:.0f} s"
        if reason is not None:
            raise ClusterError(f"{what}: {reason}")
        time.sleep(0.1)
