"""The API server's answers to our errors: whether trying the same again can help."""

import asyncio
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest
from kubernetes.aio.client import Configuration

from tidegate_operator.cluster import DEPLOYMENT
from tidegate_operator.errors import ClusterError, Conflict, Missing, Refused, Unavailable
from tidegate_operator.kubernetes_cluster import KubernetesCluster


class Answer(BaseHTTPRequestHandler):
    status: ClassVar[int]
    message: ClassVar[str]

    def do_PATCH(self) -> None:
        body = json.dumps({"kind": "Status", "message": self.message}).encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def api_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


async def apply(api_server: str) -> None:
    cluster = KubernetesCluster(Configuration(host=api_server))
    manifest = {"apiVersion": "apps/v1", "kind": DEPLOYMENT.name, "metadata": {"name": "chat", "namespace": "demo"}}
    try:
        await cluster.apply(manifest, field_manager="tests", force=True)
    finally:
        await cluster.close()


UNFIT = (
    "failed to create typed patch object (demo/chat; apps/v1, Kind=Deployment): "
    ".spec.template.spec.affinity.nodeAfinity: field not declared in schema"
)


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        pytest.param(422, "is invalid: spec.replicas", Refused, id="an invalid object"),
        pytest.param(403, "exceeded quota", Refused, id="a forbidden one"),
        pytest.param(500, UNFIT, Refused, id="a field that its kind does not have"),
        pytest.param(500, "etcdserver: request timed out", Unavailable, id="a server in trouble"),
        pytest.param(409, "conflict", Conflict, id="a conflict"),
        pytest.param(404, "not found", Missing, id="nothing there"),
    ],
)
def test_answer_becomes_the_error_that_says_whether_to_try_again(
    api_server: str, status: int, message: str, error: type[ClusterError]
) -> None:
    Answer.status, Answer.message = status, message
    with pytest.raises(ClusterError) as raised:
        asyncio.run(apply(api_server))
    assert type(raised.value) is error
    assert str(raised.value) == message
