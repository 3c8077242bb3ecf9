"""A stranger's first question, over the ways a client can take to the Service."""

import pytest
from openai import OpenAI

from tests.e2e.client_pod import Chat, ClientPod
from tests.e2e.inference_service import MODEL, InferenceService
from tests.e2e.kube import Kube
from tests.e2e.port_forward import port_forward
from tidegate_contract.labels import API_PORT_NAME

pytestmark = pytest.mark.e2e

QUESTION = "Why is the sky blue?"
MAX_TOKENS = 24


def service_port(service: InferenceService) -> int:
    ports = {port["name"]: port["port"] for port in service.service()["spec"]["ports"]}
    return int(ports[API_PORT_NAME])


def test_openai_client_in_the_cluster_streams_a_chat_from_the_service(
    chat: InferenceService, client_pod: ClientPod
) -> None:
    (result,) = client_pod.run_chats(chat.url, MODEL, [Chat("sky", QUESTION, MAX_TOKENS)], within_s=60)
    assert result.error is None
    assert len(result.tokens) == MAX_TOKENS
    assert result.finish_reason == "length"


def test_openai_client_outside_streams_the_same_chat_through_a_port_forward(
    kube: Kube, chat: InferenceService, client_pod: ClientPod
) -> None:
    (inside,) = client_pod.run_chats(chat.url, MODEL, [Chat("sky", QUESTION, MAX_TOKENS)], within_s=60)
    with (
        port_forward(kube, f"service/{chat.service()['metadata']['name']}", chat.namespace, service_port(chat)) as port,
        OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        assert [model.id for model in client.models.list()] == [MODEL]
        with client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=MAX_TOKENS,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as stream:
            pieces = [choice.delta.content for chunk in stream for choice in chunk.choices if choice.delta.content]
    assert len(pieces) > 1, "it came in one piece, which is no stream"
    assert "".join(pieces) == "".join(inside.tokens)


def test_kubectl_get_tells_model_readiness_and_replicas(kube: Kube, chat: InferenceService) -> None:
    shown = kube.run("get", "infs", chat.name, "-n", chat.namespace)
    assert MODEL in shown
    assert "True" in shown
