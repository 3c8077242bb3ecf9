"""Replicas follow the load on the Service, no stream notices, and the resource tells why."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.e2e.client_pod import Chat, ChatResult, ClientPod, RunningChats
from tests.e2e.inference_service import MODEL, RESOURCE, InferenceService, manifest
from tests.e2e.kube import Kube
from tests.e2e.wait import NotYet, eventually
from tidegate_contract.labels import LOAD_PATH, OPS_PORT

pytestmark = pytest.mark.e2e

MAX_NUM_SEQS = 8
SCALE_UP_S = 60
DOWN_WINDOW_S = 5  # once streams are to be in the way; before that a pause of the load's client must not count
STREAM_S = 300  # under a minute on a quiet machine; this bounds a busy one

# As many at once as one pod takes: demand is a whole replica, and more than the 65 % that one should carry.
LOAD = (
    "Explain how tides work.",
    "Write a poem about the sea.",
    "List what a sailor packs for a year.",
    "Why do ships float?",
    "Describe a storm.",
    "What is a lighthouse for?",
    "How deep is the ocean?",
    "Name five kinds of boats.",
)
LOAD_TOKENS = 160  # seconds, so that what a client takes from one chat to the next is little beside them
# Few enough for one pod, and enough that both have some: all four go to the same one in an eighth of the cases.
NUM_LONG = MAX_NUM_SEQS // 2
LONG_PROMPT = "Tell me everything about the sea. Take your time."
LONG_LASTS_S = 30  # at the speed of a chat alone; side by side they take longer


@pytest.fixture(scope="module")
def scaled(kube: Kube, namespace: str) -> Iterator[InferenceService]:
    service = InferenceService(kube, "scaled", namespace)
    autoscaling = {"minReplicas": 1, "maxReplicas": 2}
    kube.apply(manifest(service.name, namespace, autoscaling=autoscaling, engine={"maxNumSeqs": MAX_NUM_SEQS}))
    service.wait_until_ready()
    yield service
    kube.delete("infs", service.name, namespace)


def load_chats() -> list[Chat]:
    return [Chat(f"load-{i}", prompt, LOAD_TOKENS) for i, prompt in enumerate(LOAD)]


def long_chats(num_tokens: int) -> list[Chat]:
    return [Chat(f"long-{i}", LONG_PROMPT, num_tokens) for i in range(NUM_LONG)]


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


def set_autoscaling(kube: Kube, service: InferenceService, **fields: object) -> None:
    patch = json.dumps({"spec": {"autoscaling": fields}})
    kube.run("patch", RESOURCE, service.name, "-n", service.namespace, "--type=merge", "-p", patch)


def wait_for_desired(service: InferenceService, replicas: int, *, within_s: float) -> None:
    def check() -> None:
        status = service.get()["status"].get("autoscaling")
        if status is None or status["desired"] != replicas:
            raise NotYet(f"wanted {replicas} desired replicas, autoscaling says {status}")

    eventually(check, within_s=within_s)


@contextmanager
def streams_on_every_pod(
    kube: Kube, service: InferenceService, client_pod: ClientPod, chats: Sequence[Chat]
) -> Iterator[RunningChats]:
    """Stream these chats with at least one on each pod; connections are balanced at random, so try until it is so."""
    for _ in range(10):
        with client_pod.chats(service.url, MODEL, chats) as running:
            running.wait_for_first_tokens([chat.id for chat in chats], within_s=STREAM_S)
            if min(num_running(kube, service)) > 0:
                yield running
                return

        def dropped() -> None:
            if now := sum(num_running(kube, service)):
                raise NotYet(f"{now} requests still run")

        eventually(dropped, within_s=30)
    raise AssertionError(
        f"ten times in a row {len(chats)} connections went to the same pod: the Service does not balance"
    )


def test_load_scales_up_within_a_minute_and_idleness_back_down_with_every_stream_unharmed(
    kube: Kube, scaled: InferenceService, client_pod: ClientPod
) -> None:
    asked = time.monotonic()
    undisturbed = alone(client_pod, scaled.url, load_chats())
    tokens_per_s = len(LOAD) * LOAD_TOKENS / (time.monotonic() - asked)

    with client_pod.chats(scaled.url, MODEL, load_chats(), repeat=True) as load:
        started = time.monotonic()
        wait_for_desired(scaled, 2, within_s=SCALE_UP_S)
        scaled.wait_until_ready(replicas=2, within_s=SCALE_UP_S - (time.monotonic() - started))
        assert "from 1 to 2 replicas" in scaled.events_told()
        set_autoscaling(
            kube, scaled, mode="Paused"
        )  # until streams run on both pods, however long it takes to place them
        under_load = by_id(load.finish(within_s=STREAM_S))
    assert under_load == undisturbed

    chats = long_chats(max(64, min(3000, int(tokens_per_s * LONG_LASTS_S))))
    with streams_on_every_pod(kube, scaled, client_pod, chats) as streams:
        set_autoscaling(kube, scaled, mode="Active", windows={"downSeconds": DOWN_WINDOW_S})
        wait_for_desired(scaled, 1, within_s=60)
        assert not streams.has_ended(), "the streams were too short to be in the way"
        disturbed = by_id(streams.finish(within_s=STREAM_S))
    scaled.wait_until_ready(replicas=1, within_s=60)
    assert "from 2 to 1 replicas" in scaled.events_told()

    (reference,) = client_pod.run_chats(scaled.url, MODEL, chats[:1], within_s=STREAM_S)
    assert reference.error is None
    assert disturbed == {chat.id: replace(reference, id=chat.id) for chat in chats}
