"""What must hold before the demo begins: refused at once is better than after minutes of building."""

from tests.cluster.kube import lifecycle
from tools.demo import release
from tools.demo.access import access_to, answers
from tools.demo.images import COMPONENTS, require_builder
from tools.demo.inference_service import EXAMPLE
from tools.demo.stages import REPOSITORY, StageFailed
from tools.demo.target import Target


def check(target: Target) -> None:
    """Check the machine for a cluster that is started here, the tools and the cluster for one of the user's.

    Raises:
        StageFailed, ClusterError: says what is in the way.
    """
    if target.context is None:
        lifecycle.check(target.cluster_name, COMPONENTS)
        return
    access = access_to(target)
    require_builder(target)
    if not answers(target.context):
        raise StageFailed(f"the cluster of context {target.context!r} does not answer")
    if release.find_installed(access).is_from_others:
        raise StageFailed(
            f"{target.context!r} has a Tidegate that the demo has not installed, and would change; apply "
            f"{EXAMPLE.relative_to(REPOSITORY)} there, or try DEMO_CONTEXT=local"
        )
