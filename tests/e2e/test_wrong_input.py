"""Wrong input at each door: the API server, the pod's start, the HTTP API. Each answer says what to change."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.e2e.inference_service import MODEL, InferenceService, manifest, refusal
from tests.e2e.kube import Json, Kube
from tests.e2e.port_forward import port_forward
from tests.e2e.test_chat import service_port
from tests.e2e.wait import NotYet, eventually

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        pytest.param({"model": {"uri": "ftp://x/y"}}, "model.uri", id="a URI scheme nobody serves"),
        pytest.param(
            {"replicas": 1, "autoscaling": {"minReplicas": 1, "maxReplicas": 2}}, "replicas", id="fixed and scaled"
        ),
        pytest.param(
            {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}}, "minReplicas", id="a minimum above the maximum"
        ),
        pytest.param({"replicas": -1}, "replicas", id="less than no pod"),
        pytest.param({"engine": {"blockSize": 17}}, "blockSize", id="a block size that is no power of two"),
    ],
)
def test_api_server_refuses_a_wrong_resource_and_names_the_field(
    kube: Kube, namespace: str, spec: Json, told: str
) -> None:
    said = refusal(kube, manifest("refused", namespace, **spec))
    assert told in said
    assert "InferenceService" in said


def test_a_misspelt_field_is_refused_rather_than_dropped(kube: Kube, namespace: str) -> None:
    assert 'unknown field "spec.repliacs"' in refusal(kube, manifest("refused", namespace, repliacs=1))


def test_a_missing_model_becomes_a_condition_with_reason_and_hint(kube: Kube, namespace: str) -> None:
    missing = InferenceService(kube, "missing", namespace)
    kube.apply(manifest(missing.name, namespace, model={"uri": "file:///models/none.gguf"}, replicas=1))
    try:

        def check() -> Json:
            degraded = missing.condition("Degraded")
            if degraded is None or degraded["status"] != "True":
                raise NotYet(f"Degraded is {degraded}")
            return degraded

        degraded = eventually(check, within_s=120)
        assert degraded["reason"] == "ModelNotFound"
        assert "/models/none.gguf" in degraded["message"]
        assert "ModelNotFound" in missing.events_told()
        ready = missing.condition("Ready")
        assert ready is not None
        assert ready["status"] == "False"
    finally:
        kube.delete("infs", missing.name, namespace)


@pytest.fixture(scope="module")
def api(kube: Kube, chat: InferenceService) -> Iterator[str]:
    target = f"service/{chat.service()['metadata']['name']}"
    with port_forward(kube, target, chat.namespace, service_port(chat)) as port:
        yield f"http://127.0.0.1:{port}/v1"


def error_of(url: str, body: bytes) -> tuple[int, Json]:
    """Status and error envelope of a POST that must fail."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            raise AssertionError(f"accepted with {reply.status}")
    except urllib.error.HTTPError as failure:
        with failure:
            envelope = json.loads(failure.read())
            return failure.code, envelope["error"]


def completion(**fields: object) -> bytes:
    return json.dumps({"model": MODEL, "prompt": "Hello", "max_tokens": 4, **fields}).encode()


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        pytest.param(completion(model="gpt-9"), 404, "gpt-9", id="unknown model"),
        pytest.param(completion(prompt="tide " * 20_000), 400, "tokens", id="a prompt longer than the context"),
        pytest.param(b'{"model": ', 400, "JSON", id="malformed JSON"),
        pytest.param(completion(temperature=-1), 400, "temperature", id="a temperature below zero"),
        pytest.param(completion(max_tokens="many"), 400, "max_tokens", id="a word for a number"),
    ],
)
def test_server_answers_wrong_requests_in_the_one_envelope(api: str, body: bytes, status: int, told: str) -> None:
    code, error = error_of(f"{api}/completions", body)
    assert code == status
    assert told in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
