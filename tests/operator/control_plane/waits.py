"""Waits for what the operator should bring about, and the names of what it makes."""

from tests.e2e.kube import Json, Kube
from tests.e2e.wait import NotYet, eventually
from tests.operator.control_plane.ready_pods import make_ready, pods_of

CHILDREN = ("deployment", "service", "serviceaccount", "poddisruptionbudget")


def wait_for(kube: Kube, namespace: str, kind: str, name: str = "chat", *, within_s: float = 30) -> Json:
    def check() -> Json:
        found = kube.find(kind, name, namespace)
        if found is None:
            raise NotYet(f"no {kind} {name}")
        return found

    return eventually(check, within_s=within_s)


def wait_for_condition(kube: Kube, namespace: str, kind: str, status: str, *, within_s: float = 30) -> Json:
    """The condition, once it has this status for the newest spec."""

    def check() -> Json:
        found = kube.get("infs", "chat", namespace)
        conditions = (found.get("status") or {}).get("conditions", [])
        for condition in conditions:
            is_new = condition["observedGeneration"] == found["metadata"]["generation"]
            if (condition["type"], condition["status"]) == (kind, status) and is_new:
                return dict(condition)
        raise NotYet(f"{kind} is not {status}: {conditions}")

    return eventually(check, within_s=within_s)


def wait_for_replicas(kube: Kube, namespace: str, replicas: int, *, within_s: float = 30) -> None:
    def check() -> None:
        now = kube.get("deployment", "chat", namespace)["spec"]["replicas"]
        if now != replicas:
            raise NotYet(f"{now} replicas, not {replicas}")

    eventually(check, within_s=within_s)


def wait_until_settled(kube: Kube, namespace: str, replicas: int) -> None:
    """All pods there and, as far as this test says, ready; the operator has seen it."""

    def check() -> None:
        if len(pods_of(kube, namespace)) != replicas:
            raise NotYet(f"{len(pods_of(kube, namespace))} pods, not {replicas}")
        make_ready(kube, namespace)

    eventually(check, within_s=30)
    wait_for_condition(kube, namespace, "Progressing", "False")


def wait_until_told(kube: Kube, namespace: str, *sentences: str) -> None:
    """`kubectl describe` holds them all: events and status follow what they tell of."""

    def check() -> None:
        told = kube.run("describe", "infs", "chat", "-n", namespace)
        if missing := [sentence for sentence in sentences if sentence not in told]:
            raise NotYet(f"{missing} not in {told}")

    eventually(check, within_s=30)


def wait_for_decisions(kube: Kube, namespace: str, *decisions: tuple[int, int]) -> None:
    """The status remembers exactly these changes of replicas (from, to), newest first."""

    def check() -> None:
        known = kube.get("infs", "chat", namespace)["status"]["autoscaling"].get("decisions", [])
        if [(decision["fromReplicas"], decision["toReplicas"]) for decision in known] != list(decisions):
            raise NotYet(f"decisions are {known}")

    eventually(check, within_s=30)


def no_children(kube: Kube, namespace: str) -> None:
    """Passes once nothing of the service is left."""
    left = [kind for kind in CHILDREN if kube.find(kind, "chat", namespace)]
    left += ["pods"] if pods_of(kube, namespace) else []
    if left:
        raise NotYet(f"{left} are still there")
