"""What a Prometheus in the cluster would scrape from a pod's ops port."""

import urllib.request

import pytest

from tests.e2e.inference_service import InferenceService
from tests.e2e.kube import Kube
from tests.e2e.port_forward import port_forward
from tidegate_contract.labels import METRICS_PATH, OPS_PORT
from tidegate_contract.metric_names import SERVER_METRICS, VLLM_METRICS, Metric

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def exposition(kube: Kube, chat: InferenceService) -> str:
    pod = chat.ready_pods()[0]["metadata"]["name"]
    with (
        port_forward(kube, f"pod/{pod}", chat.namespace, OPS_PORT) as port,
        urllib.request.urlopen(f"http://127.0.0.1:{port}{METRICS_PATH}", timeout=30) as reply,
    ):
        return str(reply.read().decode())


@pytest.mark.parametrize("metric", [*SERVER_METRICS, *VLLM_METRICS], ids=lambda metric: metric.name)
def test_metrics_of_the_contract_are_scraped_through_a_port_forward(exposition: str, metric: Metric) -> None:
    samples = [line for line in exposition.splitlines() if line.startswith(metric.name)]
    assert samples, f"{metric.name} is not exposed"
    assert not [line for line in samples if line.endswith("NaN")]
