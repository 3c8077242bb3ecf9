"""Replicas follow the load on the Service, no stream notices, and the resource tells why."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.e2e.client_pod import Chat, ChatResult, ClientPod, RunningChats
from tests.e2e.inference_service import MODEL, InferenceService, manifest
from tests.e2e.kube import Kube
from tests.e2e.wait import NotYet, eventually
from tidegate_contract.labels import LOAD_PATH, OPS_PORT

pytestmark = pytest.mark.e2e

MAX_NUM_SEQS = 4
SCALE_UP_S = 60
DOWN_WINDOW_S = 5
STREAM_S = 300  # under a minute on a quiet machine; this bounds a busy one
LONG_PROMPT = "Tell me everything about the sea. Take your time."
LONG_TOKENS = 700  # outlasts the down window by far

PROMPTS = (
    "Explain how tides work.",
    "Write a poem about the sea.",
    "List what a sailor packs for a year.",
    "Why do ships float?",
)


@pytest.fixture(scope="module")
def scaled(kube: Kube, namespace: str) -> Iterator[InferenceService]:
    service = InferenceService(kube, "scaled", namespace)
    autoscaling = {"minReplicas": 1, "maxReplicas": 2, "windows": {"downSeconds": DOWN_WINDOW_S}}
    kube.apply(manifest(service.name, namespace, autoscaling=autoscaling, engine={"maxNumSeqs": MAX_NUM_SEQS}))
    service.wait_until_ready()
    yield service
    kube.delete("infs", service.name, namespace)


def load_chats() -> list[Chat]:
    return [Chat(f"load-{i}", prompt, 96) for i, prompt in enumerate(PROMPTS)]


def by_id(results: Sequence[ChatResult]) -> dict[str, ChatResult]:
    """Results by chat; a chat that ran several times must have given the same each time.

    Raises:
        AssertionError: one failed, or changed.
    """
    failed = [result for result in results if result.error is not None]
    assert not failed, f"{len(failed)} of {len(results)} failed: {failed[0].error}"
    firsts: dict[str, ChatResult] = {}
    for result in results:
        assert firsts.setdefault(result.id, result) == result
    return firsts


def alone(client_pod: ClientPod, url: str, chats: Sequence[Chat]) -> dict[str, ChatResult]:
    """What each chat gives when nothing else runs."""
    return by_id([result for chat in chats for result in client_pod.run_chats(url, MODEL, [chat], within_s=STREAM_S)])


def num_running(kube: Kube, service: InferenceService) -> list[int]:
    """Requests in each ready pod, as the pods report."""
    return [
        int(json.loads(kube.pod_http(pod["metadata"]["name"], service.namespace, OPS_PORT, LOAD_PATH))["num_running"])
        for pod in service.ready_pods()
    ]


def wait_for_desired(service: InferenceService, replicas: int, *, within_s: float) -> None:
    def check() -> None:
        status = service.get()["status"].get("autoscaling")
        if status is None or status["desired"] != replicas:
            raise NotYet(f"wanted {replicas} desired replicas, autoscaling says {status}")

    eventually(check, within_s=within_s)


def stream_on_every_pod(
    kube: Kube, service: InferenceService, client_pod: ClientPod, stack: ExitStack
) -> dict[str, RunningChats]:
    """One long stream on each pod; connections are balanced at random, so one that doubles up is dropped."""
    kept: dict[str, RunningChats] = {}
    for _ in range(20):
        chat = Chat(f"long-{len(kept)}", LONG_PROMPT, LONG_TOKENS)
        with ExitStack() as trial:
            running = trial.enter_context(client_pod.chats(service.url, MODEL, [chat]))
            running.wait_for_first_tokens([chat.id], within_s=STREAM_S)
            if max(num_running(kube, service)) == 1:
                kept[chat.id] = running
                stack.push(trial.pop_all())
        if len(kept) == 2:
            return kept

        def dropped(expected: int = len(kept)) -> None:
            if (now := sum(num_running(kube, service))) != expected:
                raise NotYet(f"{now} requests run, not {expected}")

        eventually(dropped, within_s=30)
    raise AssertionError("twenty connections in a row went to the same pod: the Service does not balance")


def test_load_scales_up_within_a_minute_and_idleness_back_down_with_every_stream_unharmed(
    kube: Kube, scaled: InferenceService, client_pod: ClientPod
) -> None:
    undisturbed = alone(client_pod, scaled.url, load_chats())

    with client_pod.chats(scaled.url, MODEL, load_chats(), repeat=True) as load:
        started = time.monotonic()
        wait_for_desired(scaled, 2, within_s=SCALE_UP_S)
        scaled.wait_until_ready(replicas=2, within_s=SCALE_UP_S - (time.monotonic() - started))
        assert "from 1 to 2 replicas" in scaled.events_told()
        under_load = by_id(load.finish(within_s=STREAM_S))
    assert under_load == undisturbed

    with ExitStack() as stack:
        streams = stream_on_every_pod(kube, scaled, client_pod, stack)
        wait_for_desired(scaled, 1, within_s=120)
        assert not any(running.has_ended() for running in streams.values()), (
            "the streams were too short to be in the way"
        )
        disturbed = [result for running in streams.values() for result in running.finish(within_s=STREAM_S)]
    scaled.wait_until_ready(replicas=1, within_s=60)
    assert "from 2 to 1 replicas" in scaled.events_told()

    (reference,) = client_pod.run_chats(
        scaled.url, MODEL, [Chat("long-0", LONG_PROMPT, LONG_TOKENS)], within_s=STREAM_S
    )
    assert reference.error is None
    assert disturbed == [reference, replace(reference, id="long-1")]
