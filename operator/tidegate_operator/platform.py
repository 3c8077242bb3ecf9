"""What the operator itself brings into every pod it renders, as opposed to what a user writes."""

from dataclasses import dataclass

from tidegate_operator.resource import PullPolicy


@dataclass(frozen=True, slots=True)
class Platform:
    """Defaults of this installation; a change of one alone rolls no pod (see objects/rendering.py)."""

    server_image: str
    server_image_pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    renderer_version: str = "0"
    cluster_domain: str = "cluster.local"
