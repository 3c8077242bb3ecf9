"""Things break: the service comes back by itself, and the operator replaces nothing that it need not."""

from dataclasses import dataclass

import pytest

from tests.e2e.client_pod import Chat, ClientPod
from tests.e2e.inference_service import MODEL, InferenceService, server_status
from tests.e2e.kube import Kube
from tests.e2e.release import NAMESPACE as OPERATOR_NAMESPACE
from tests.e2e.release import OPERATOR
from tests.e2e.wait import NotYet, eventually
from tidegate_contract.labels import SERVER_CONTAINER, TEMPLATE_HASH_ANNOTATION

pytestmark = pytest.mark.e2e

SHORT = Chat("short", "Name three oceans.", 16)
LONG = Chat("long", "Tell me a long story about a lighthouse.", 150)
STREAM_S = 240  # seconds on a quiet machine; this bounds a busy one
TAKE_OVER_S = 15  # the promise of the design; the lease may have been renewed just before its holder died
POLL_SLACK_S = 3

# Finds the engine process from inside the container, where /proc shows its processes only: it is the largest child of
# the API process, as it holds the weights.
KILL_ENGINE = """
import os, signal
def rss(pid):
    return int(open(f"/proc/{pid}/statm").read().split()[1])
def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])
children = [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid() and parent(p) == 1]
os.kill(max(children, key=rss), signal.SIGKILL)
"""


@dataclass(frozen=True, slots=True)
class Rolled:
    """What changes when pods are replaced by a new version of the template, and only then."""

    generation: int
    template_hash: str
    revision: str

    @classmethod
    def of(cls, service: InferenceService) -> "Rolled":
        metadata = service.deployment()["metadata"]
        notes = metadata["annotations"]
        return cls(
            generation=metadata["generation"],
            template_hash=notes[TEMPLATE_HASH_ANNOTATION],
            revision=notes["deployment.kubernetes.io/revision"],
        )


def answers(chat: InferenceService, client_pod: ClientPod) -> None:
    (result,) = client_pod.run_chats(chat.url, MODEL, [SHORT], within_s=STREAM_S)
    assert result.error is None
    assert len(result.tokens) == SHORT.max_tokens


def pod_uids(service: InferenceService) -> set[str]:
    return {pod["metadata"]["uid"] for pod in service.pods()}


def lease_holder(kube: Kube) -> str:
    return str(kube.get("lease", OPERATOR, OPERATOR_NAMESPACE)["spec"].get("holderIdentity") or "")


def wait_until_the_operator_works(kube: Kube, service: InferenceService) -> None:
    """Take one of the operator's objects away and wait until it is back, which takes a whole reconcile."""
    before = service.service()["metadata"]
    kube.delete("service", before["name"], service.namespace)

    def check() -> None:
        found = kube.find("service", before["name"], service.namespace)
        if found is None or found["metadata"]["uid"] == before["uid"]:
            raise NotYet("the operator has not made the deleted Service again")

    eventually(check, within_s=60)


def test_a_deleted_pod_finishes_its_stream_and_is_replaced(
    kube: Kube, chat: InferenceService, client_pod: ClientPod
) -> None:
    (undisturbed,) = client_pod.run_chats(chat.url, MODEL, [LONG], within_s=STREAM_S)
    assert undisturbed.error is None
    rolled = Rolled.of(chat)
    old = chat.pods()[0]["metadata"]

    with client_pod.chats(chat.url, MODEL, [LONG]) as running:
        running.wait_for_first_tokens([LONG.id], within_s=STREAM_S)
        kube.run("delete", "pod", old["name"], "-n", chat.namespace, "--wait=false")
        (disturbed,) = running.finish(within_s=STREAM_S)

    assert disturbed == undisturbed
    (new,) = chat.wait_until_ready()
    assert new["metadata"]["uid"] != old["uid"]
    assert Rolled.of(chat) == rolled
    answers(chat, client_pod)


def test_a_killed_engine_process_restarts_its_container_and_nothing_else(
    kube: Kube, chat: InferenceService, client_pod: ClientPod
) -> None:
    rolled = Rolled.of(chat)
    (pod,) = chat.wait_until_ready()
    name, restarts = pod["metadata"]["name"], server_status(pod)["restartCount"]

    kube.run("exec", "-n", chat.namespace, name, "-c", SERVER_CONTAINER, "--", "python3", "-c", KILL_ENGINE)

    def restarted() -> None:
        now = server_status(kube.get("pod", name, chat.namespace))["restartCount"]
        if now != restarts + 1:
            raise NotYet(f"restarts of {name}: {now}, before: {restarts}")

    eventually(restarted, within_s=60)
    (after,) = chat.wait_until_ready()
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    assert Rolled.of(chat) == rolled
    answers(chat, client_pod)


def test_a_restarted_operator_rolls_nothing(kube: Kube, chat: InferenceService, client_pod: ClientPod) -> None:
    chat.wait_until_ready()
    rolled, uids = Rolled.of(chat), pod_uids(chat)

    kube.run("rollout", "restart", f"deployment/{OPERATOR}", "-n", OPERATOR_NAMESPACE)
    kube.run("rollout", "status", f"deployment/{OPERATOR}", "-n", OPERATOR_NAMESPACE, "--timeout=120s", timeout_s=150)

    wait_until_the_operator_works(kube, chat)
    assert Rolled.of(chat) == rolled
    assert pod_uids(chat) == uids
    answers(chat, client_pod)


def test_the_standby_takes_over_when_the_working_operator_dies(kube: Kube, chat: InferenceService) -> None:
    chat.wait_until_ready()
    rolled, uids = Rolled.of(chat), pod_uids(chat)
    dead = lease_holder(kube)
    pods = kube.list_objects("pods", OPERATOR_NAMESPACE, selector="app.kubernetes.io/component=operator")
    (leader,) = [pod["metadata"]["name"] for pod in pods if pod["metadata"]["name"] in dead]

    kube.run("delete", "pod", leader, "-n", OPERATOR_NAMESPACE, "--grace-period=0", "--force")

    def taken_over() -> None:
        holder = lease_holder(kube)
        if holder in ("", dead):
            raise NotYet(f"the lease is held by {holder!r}")

    eventually(taken_over, within_s=TAKE_OVER_S + POLL_SLACK_S)
    wait_until_the_operator_works(kube, chat)
    assert Rolled.of(chat) == rolled
    assert pod_uids(chat) == uids
