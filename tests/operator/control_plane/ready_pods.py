"""Plays the kubelet: says that pods are ready, and answers `/load` for them on loopback."""

import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

from tests.e2e.kube import Json, Kube
from tests.operator.make import report
from tidegate_contract.labels import OPS_PORT, SERVICE_LABEL

LOOPBACK = "127.94.0.1"  # an address of its own, so that nothing else on this machine holds its port


@dataclass(slots=True)
class LoadServer:
    """Every pod whose address is LOOPBACK reports this many running requests of four."""

    num_running: int = 0
    num_waiting: int = 0

    def start(self) -> ThreadingHTTPServer:
        load = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = msgspec.json.encode(report(num_running=load.num_running, num_waiting=load.num_waiting))
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer((LOOPBACK, OPS_PORT), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server


def pods_of(kube: Kube, namespace: str, name: str = "chat") -> list[Json]:
    return kube.list_objects("pods", namespace, selector=f"{SERVICE_LABEL}={name}")


def make_ready(kube: Kube, namespace: str, name: str = "chat") -> None:
    """Mark every pod of the service as running and ready."""
    now = "2026-01-01T00:00:00Z"
    status = {
        "phase": "Running",
        "podIP": LOOPBACK,
        "podIPs": [{"ip": LOOPBACK}],
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("PodScheduled", "Ready")
        ],
    }
    for pod in pods_of(kube, namespace, name):
        patch = json.dumps({"status": status})
        command = ("patch", "pod", pod["metadata"]["name"], "-n", namespace, "--subresource=status", "--type=merge")
        kube.run(*command, "-p", patch)
