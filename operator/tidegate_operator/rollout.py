"""How many pods a rollout may take away before their successors serve."""

from collections.abc import Sequence
from typing import Final

from tidegate_operator.failures import pod_failure
from tidegate_operator.pods import Pod
from tidegate_operator.resource import InferenceServiceSpec

ALL: Final = "100%"


def max_unavailable(spec: InferenceServiceSpec, pods: Sequence[Pod], template_hash: str) -> int | str:
    """What the Deployment's rolling update gets: none while anything serves or may come to.

    Kubernetes takes unready old pods away no further than this bound allows. With none allowed, an old pod that fails
    holds its GPU or memory until a new one serves, which for want of them never does. So where every old pod fails and
    nothing serves, all may go at once: nothing is lost.
    """
    present = [pod for pod in pods if pod.is_present]
    old = [pod for pod in present if pod.template_hash != template_hash]
    if not old or any(pod.is_ready for pod in present):
        return 0
    return ALL if all(pod_failure(spec, pod) is not None for pod in old) else 0
