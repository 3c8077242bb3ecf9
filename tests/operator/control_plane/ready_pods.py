"""Plays the kubelet: says how pods are, and answers `/load` for them on loopback."""

import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

from tests.e2e.kube import Json, Kube
from tests.operator.make import report
from tidegate_contract.labels import OPS_PORT, SERVER_CONTAINER, SERVICE_LABEL

LOOPBACK = "127.94.0.1"  # an address of its own, so that nothing else on this machine holds its port
LONG_AGO = "2026-01-01T00:00:00Z"


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
    conditions = [_condition("PodScheduled"), _condition("Ready")]
    _say(kube, namespace, name, phase="Running", podIP=LOOPBACK, podIPs=[{"ip": LOOPBACK}], conditions=conditions)


def let_fail(kube: Kube, namespace: str, name: str = "chat") -> None:
    """Mark the server of every pod as ended."""
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "boom"}}
    server = {"name": SERVER_CONTAINER, "state": ended, "ready": False, "restartCount": 1, "image": "", "imageID": ""}
    conditions = [_condition("PodScheduled")]
    _say(kube, namespace, name, phase="Running", conditions=conditions, containerStatuses=[server])


def let_wait_for_volumes(kube: Kube, namespace: str, name: str = "chat") -> None:
    """Mark every pod as scheduled long ago and no further, with the kubelet's event of a missing volume."""
    for pod in pods_of(kube, namespace, name):
        pod_name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        node = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod_name}, "target": node}
        path = f"/api/v1/namespaces/{namespace}/pods/{pod_name}/binding"
        kube.run("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))  # or the scheduler tries for ever
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{pod_name}.mount", "namespace": namespace},
            "involvedObject": {"kind": "Pod", "name": pod_name, "namespace": namespace, "uid": uid},
            "type": "Warning",
            "reason": "FailedMount",
            "message": 'MountVolume.SetUp failed for volume "x": configmap "nope" not found',
            "lastTimestamp": LONG_AGO,
        }
        kube.apply(event)
    _say(kube, namespace, name, conditions=[_condition("PodScheduled")])


def _condition(kind: str) -> Json:
    return {"type": kind, "status": "True", "lastTransitionTime": LONG_AGO}


def _say(kube: Kube, namespace: str, name: str, **status: object) -> None:
    patch = json.dumps({"status": status})
    for pod in pods_of(kube, namespace, name):
        command = ("patch", "pod", pod["metadata"]["name"], "-n", namespace, "--subresource=status", "--type=merge")
        kube.run(*command, "-p", patch)
