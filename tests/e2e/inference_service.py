"""One InferenceService of the tests: made, watched and read through kubectl."""

from dataclasses import dataclass

from tests.e2e.kube import Json, Kube, KubectlError
from tests.e2e.wait import NotYet, eventually
from tidegate_contract.labels import GROUP, KIND, PLURAL, SERVER_CONTAINER, SERVICE_LABEL, VERSION

MODEL = "smollm2-135m-instruct"
RESOURCE = f"{PLURAL}.{GROUP}"

# The first pod loads a 135M model on a share of two cores, perhaps while the operator's images are still unpacked.
READY_TIMEOUT_S = 180


def manifest(name: str, namespace: str, **spec: object) -> Json:
    """An InferenceService of the built-in model, small enough that several fit on two cores."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"uri": f"builtin://{MODEL}"},
            "resources": {"cpu": "200m", "memory": "2Gi"},
            "drain": {"timeoutSeconds": 300},
            **spec,
        },
    }


@dataclass(frozen=True, slots=True)
class InferenceService:
    """Asks the cluster about one InferenceService and what was made for it."""

    kube: Kube
    name: str
    namespace: str

    @property
    def selector(self) -> str:
        return f"{SERVICE_LABEL}={self.name}"

    @property
    def url(self) -> str:
        """Where a client inside the cluster finds it, as the status says."""
        return str(self.get()["status"]["url"])

    def get(self) -> Json:
        return self.kube.get(RESOURCE, self.name, self.namespace)

    def condition(self, kind: str) -> Json | None:
        """The condition of this type, if the operator has written it for the resource as it is now."""
        resource = self.get()
        for condition in resource.get("status", {}).get("conditions", []):
            if condition["type"] == kind and condition["observedGeneration"] == resource["metadata"]["generation"]:
                return dict(condition)
        return None

    def deployment(self) -> Json:
        found = self.kube.list_objects("deployments", self.namespace, selector=self.selector)
        assert len(found) == 1, [d["metadata"]["name"] for d in found]
        return found[0]

    def service(self) -> Json:
        found = self.kube.list_objects("services", self.namespace, selector=self.selector)
        assert len(found) == 1, [s["metadata"]["name"] for s in found]
        return found[0]

    def pods(self) -> list[Json]:
        """The pods that are not on their way out."""
        found = self.kube.list_objects("pods", self.namespace, selector=self.selector)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def ready_pods(self) -> list[Json]:
        return [pod for pod in self.pods() if is_ready(pod)]

    def wait_until_ready(self, *, replicas: int = 1, within_s: float = READY_TIMEOUT_S) -> list[Json]:
        """The ready pods, once there are exactly so many and the resource says that it is ready."""

        def check() -> list[Json]:
            ready = self.condition("Ready")
            if ready is None or ready["status"] != "True":
                raise NotYet(f"{self.name} is not ready: {ready}")
            pods = self.pods()
            if len(pods) != replicas or not all(is_ready(pod) for pod in pods):
                raise NotYet(f"{self.name} has {[(p['metadata']['name'], is_ready(p)) for p in pods]}")
            return pods

        return eventually(check, within_s=within_s)

    def events_told(self) -> str:
        """What `kubectl describe` shows a person."""
        return self.kube.describe(RESOURCE, self.name, self.namespace)


def is_ready(pod: Json) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", []))


def server_status(pod: Json) -> Json:
    """The status of the pod's serving container."""
    found: Json = next(s for s in pod["status"]["containerStatuses"] if s["name"] == SERVER_CONTAINER)
    return found


def refusal(kube: Kube, resource: Json) -> str:
    """What the API server says when it refuses this resource.

    Raises:
        AssertionError: it took it.
    """
    try:
        kube.apply(resource)
    except KubectlError as problem:
        return str(problem)
    raise AssertionError(f"the API server accepted {resource['spec']}")
