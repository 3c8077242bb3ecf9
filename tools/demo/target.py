"""Which cluster the demo runs on, and how images get there: decided from what kubectl says and the person answers."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from tests.cluster.kube.spec import DEFAULT_NAME

LOCAL = "local"


class ImageRoute(Enum):
    """How an image built here reaches the cluster's nodes."""

    TEST_CLUSTER = "test-cluster"  # straight into the containerd of tests/cluster
    KIND = "kind"
    MINIKUBE = "minikube"
    K3D = "k3d"
    REGISTRY = "registry"  # pushed to DEMO_REGISTRY, pulled by the nodes


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster to use."""

    context: str | None  # of the user's kubeconfig; None: a cluster of tests/cluster
    route: ImageRoute
    cluster_name: str = ""  # what kind, k3d and tests/cluster call it
    registry: str = ""

    @property
    def is_local(self) -> bool:
        return self.context is None


class NoTarget(Exception):
    """No cluster can be used; the message says what to set."""


def choose_target(
    *, wanted: str, own: str | None, known: Collection[str], current: str | None, confirmed: bool, registry: str
) -> Target:
    """Choose the demo's cluster.

    Args:
        wanted: DEMO_CONTEXT; empty when not given, `local` for the cluster of tests/cluster.
        own: the cluster of tests/cluster that KUBECONFIG belongs to, if it does.
        known: the contexts that kubectl has.
        current: the context that kubectl points at and that answers, if any.
        confirmed: whether a person agreed to use `current`.
        registry: DEMO_REGISTRY, such as `ghcr.io/me`; needed where the images cannot be loaded directly.

    Raises:
        NoTarget: there is no such context, or the images have no way to the chosen cluster.
    """
    if wanted in (LOCAL, own) or (not wanted and own is not None):
        return local_target(own)
    context = wanted or (current if confirmed else None)
    if context is None:
        return local_target(own)
    _require_known(context, known)
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


def targets_to_clean(
    *, wanted: str, own: str | None, known: Collection[str], remembered: Sequence[Target]
) -> tuple[Target, ...]:
    """The clusters to clean: the one that DEMO_CONTEXT names, else those with a demo, else the one on this machine.

    Args:
        remembered: what `make demo` has used; those that kubectl cannot reach from here are left out.

    Raises:
        NoTarget: there is no such context.
    """
    if wanted in (LOCAL, own):
        return (local_target(own),)
    if wanted:
        _require_known(wanted, known)
        return (Target(context=wanted, route=ImageRoute.REGISTRY),)
    return tuple(target for target in remembered if target.is_local or target.context in known) or (local_target(own),)


def _require_known(context: str, known: Collection[str]) -> None:
    if context not in known:
        raise NoTarget(f"kubectl has no context {context!r}; it has: {', '.join(sorted(known)) or 'none'}")


def local_target(own: str | None) -> Target:
    return Target(context=None, route=ImageRoute.TEST_CLUSTER, cluster_name=own or DEFAULT_NAME)
