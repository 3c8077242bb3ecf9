"""A cluster over time: pods that take a while to start, work that arrives and ends, and the operator looking on.

The Deployment controller here does what Kubernetes does with a Deployment: it makes and removes pods one revision at a
time within surge and unavailability, least deletion cost first. Time moves only when `step` is called.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tests.operator.fake_cluster import FakeCluster
from tests.operator.make import PLATFORM, report, resource_manifest
from tidegate_contract import labels
from tidegate_contract.admin import LoadReport
from tidegate_operator.cluster import DEPLOYMENT, INFERENCE_SERVICE, POD, Key, Manifest
from tidegate_operator.platform import Platform
from tidegate_operator.pods import Pod, parse_time
from tidegate_operator.reconciler import Reconciler

KEY = Key("demo", "chat")
TICK_S = 5


@dataclass(slots=True)
class Simulation:
    """One InferenceService; `demand` gives its load in full replicas at a time in seconds."""

    demand: Callable[[float], float]
    startup_s: float = 20
    platform: Platform = PLATFORM
    cluster: FakeCluster = field(default_factory=FakeCluster)
    silent: set[str] = field(default_factory=set)  # pods that do not answer
    asked: int = 0  # times that loads were read
    seconds: float = 0.0
    num_made: int = 0
    reconciler: Reconciler = field(init=False)

    def __post_init__(self) -> None:
        self.restart_operator()

    def restart_operator(self, platform: Platform | None = None) -> None:
        """A new process: it remembers nothing but what the cluster holds."""
        self.platform = platform or self.platform
        self.reconciler = Reconciler(self.cluster, self, self.platform, lambda: self.cluster.now, "operator-0")

    def apply(self, **spec: object) -> None:
        manifest = resource_manifest(**spec)
        del manifest["metadata"]["generation"]
        self.cluster.put(manifest)

    async def step(self) -> None:
        """One tick: the operator looks, then the Deployment controller acts, then time passes."""
        await self.reconciler.reconcile(KEY)
        self._control_deployment()
        self.seconds += TICK_S
        self.cluster.now += timedelta(seconds=TICK_S)
        for pod in self.pods():
            age = (self.cluster.now - _created_at(pod)).total_seconds()
            pod["status"]["conditions"] = [{"type": "Ready", "status": "True" if age >= self.startup_s else "False"}]

    async def run(self, seconds: float) -> list[int]:
        """The Deployment's replicas after each tick."""
        seen = []
        for _ in range(int(seconds / TICK_S)):
            await self.step()
            seen.append(self.replicas)
        return seen

    async def read(self, pods: Sequence[Pod]) -> Mapping[str, LoadReport]:
        """The load, shared evenly by the pods that serve; a replica here runs four requests at most."""
        self.asked += 1
        serving = [pod for pod in pods if pod.is_serving]
        if not serving:
            return {}
        total = round(4 * self.demand(self.seconds))
        shares = [total // len(serving) + (i < total % len(serving)) for i in range(len(serving))]
        return {
            pod.name: report(num_running=min(4, share), num_waiting=2 * max(0, share - 4))
            for pod, share in zip(serving, shares, strict=True)
            if pod.name not in self.silent
        }

    @property
    def deployment(self) -> Manifest:
        return self.cluster.body(DEPLOYMENT, KEY.namespace, KEY.name)

    @property
    def replicas(self) -> int:
        return int(self.deployment["spec"]["replicas"])

    @property
    def status(self) -> Manifest:
        return dict(self.cluster.body(INFERENCE_SERVICE, KEY.namespace, KEY.name)["status"])

    def condition(self, kind: str) -> Manifest:
        return next(dict(condition) for condition in self.status["conditions"] if condition["type"] == kind)

    def pods(self) -> list[Manifest]:
        return [stored.body for (kind, _, _), stored in self.cluster.objects.items() if kind == POD]

    def pod_names(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods()}

    def events(self) -> list[str]:
        found = [stored.body for (kind, _, _), stored in self.cluster.objects.items() if kind.name == "Event"]
        return [f"{event['reason']}: {event['message']}" for event in found]

    def _control_deployment(self) -> None:
        body = self.deployment
        revision = hashlib.sha256(json.dumps(body["spec"]["template"], sort_keys=True).encode()).hexdigest()[:8]
        wanted = body["spec"]["replicas"]
        new = [pod for pod in self.pods() if pod["metadata"]["labels"]["pod-template-hash"] == revision]
        old = [pod for pod in self.pods() if pod not in new]
        surge = 1 if old else 0
        while len(new) < wanted and len(new) + len(old) < wanted + surge:
            new.append(self._make_pod(revision, body["spec"]["template"]["metadata"]["annotations"]))
        num_ready = sum(1 for pod in new + old if _is_ready(pod))
        for pod in sorted(old, key=_leaves_first)[: max(0, num_ready - wanted)]:
            self._remove(pod)
        for pod in sorted(new, key=_leaves_first)[: max(0, len(new) - wanted)]:
            self._remove(pod)
        pods = self.pods()
        body["status"] = {
            "observedGeneration": body["metadata"]["generation"],
            "replicas": len(pods),
            "updatedReplicas": sum(1 for pod in pods if pod["metadata"]["labels"]["pod-template-hash"] == revision),
            "availableReplicas": sum(1 for pod in pods if _is_ready(pod)),
        }

    def _make_pod(self, revision: str, annotations: Mapping[str, str]) -> Manifest:
        self.num_made += 1
        return self.cluster.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"chat-{revision}-{self.num_made}",
                    "namespace": KEY.namespace,
                    "labels": {labels.SERVICE_LABEL: KEY.name, "pod-template-hash": revision},
                    "annotations": dict(annotations),
                },
                "status": {"podIP": "10.0.0.1", "phase": "Running", "conditions": []},
            }
        )

    def _remove(self, pod: Manifest) -> None:
        metadata = pod["metadata"]
        del self.cluster.objects[POD, KEY.namespace, metadata["name"]]


def _created_at(pod: Manifest) -> datetime:
    return parse_time(pod["metadata"]["creationTimestamp"])


def _is_ready(pod: Manifest) -> bool:
    return any(condition["status"] == "True" for condition in pod["status"]["conditions"])


def _leaves_first(pod: Manifest) -> tuple[bool, int, str]:
    """Kubernetes' order: pods that are not ready, then by deletion cost, then the youngest."""
    cost = int((pod["metadata"].get("annotations") or {}).get(labels.POD_DELETION_COST_ANNOTATION, "0"))
    return _is_ready(pod), cost, pod["metadata"]["name"]
