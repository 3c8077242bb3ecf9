"""Which cluster the end-to-end tests take, and what they ask of one that is not ours; needs none itself."""

from pathlib import Path

import pytest

from tests.e2e.release import HELM_ARGS, helm_args
from tests.e2e.target_cluster import own_cluster_name

CACHE = Path("/cache/tidegate")


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        pytest.param({}, "tidegate", id="without KUBECONFIG our own is started"),
        pytest.param(
            {"KUBECONFIG": "/cache/tidegate/clusters/other/kubeconfig"},
            "other",
            id="a shell that `env` has set up means ours",
        ),
        pytest.param({"KUBECONFIG": "/home/me/.kube/config"}, None, id="any other file means the user's"),
    ],
)
def test_cluster_follows_kubeconfig(environment: dict[str, str], name: str | None) -> None:
    assert own_cluster_name(environment, CACHE) == name


def test_users_cluster_must_say_where_its_images_are() -> None:
    with pytest.raises(AssertionError, match=HELM_ARGS):
        helm_args({}, scratch=False)


def test_arguments_for_helm_are_split_as_in_a_shell() -> None:
    args = helm_args({HELM_ARGS: "--set 'operator.image.repository=r/operator,operator.image.tag=1'"}, scratch=False)
    assert args == ["--set", "operator.image.repository=r/operator,operator.image.tag=1"]
    assert helm_args({}, scratch=True) == []
