"""Which cluster the demo runs on, and how images get there: decided from what kubectl says and the person answers."""

from dataclasses import dataclass
from enum import Enum, auto

LOCAL = "local"


class ImageRoute(Enum):
    """How an image built here reaches the cluster's nodes."""

    TEST_CLUSTER = auto()  # straight into the containerd of tests/cluster
    KIND = auto()
    MINIKUBE = auto()
    K3D = auto()
    REGISTRY = auto()  # pushed to DEMO_REGISTRY, pulled by the nodes


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster to use."""

    context: str | None  # of the user's kubeconfig; None: the cluster that tests/cluster starts
    route: ImageRoute
    cluster_name: str = ""  # what kind and k3d call it
    registry: str = ""


class NoTarget(Exception):
    """No cluster can be used; the message says what to set."""


def choose_target(*, wanted: str, current: str | None, confirmed: bool, registry: str) -> Target:
    """Choose the demo's cluster.

    Args:
        wanted: DEMO_CONTEXT; empty when not given, `local` for the cluster of tests/cluster.
        current: the context that kubectl points at and that answers, if any.
        confirmed: whether a person agreed to use `current`.
        registry: DEMO_REGISTRY, such as `ghcr.io/me`; needed where the images cannot be loaded directly.

    Raises:
        NoTarget: the images have no way to the chosen cluster.
    """
    context = wanted or (current if confirmed else None)
    if context is None or context == LOCAL:
        return Target(context=None, route=ImageRoute.TEST_CLUSTER)
    if registry:
        return Target(context=context, route=ImageRoute.REGISTRY, registry=registry.rstrip("/"))
    if context.startswith("kind-"):
        return Target(context=context, route=ImageRoute.KIND, cluster_name=context.removeprefix("kind-"))
    if context.startswith("k3d-"):
        return Target(context=context, route=ImageRoute.K3D, cluster_name=context.removeprefix("k3d-"))
    if context == "minikube":
        return Target(context=context, route=ImageRoute.MINIKUBE)
    raise NoTarget(
        f"the nodes of {context!r} cannot take images from this machine directly; set DEMO_REGISTRY to a registry that "
        "you can push to and they can pull from (DEMO_REGISTRY=ghcr.io/me), or DEMO_CONTEXT=local for a cluster here"
    )
