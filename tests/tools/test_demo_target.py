"""Which cluster `make demo` uses."""

import pytest

from tools.demo.target import ImageRoute, NoTarget, Target, choose_target


@pytest.mark.parametrize(
    ("wanted", "current", "confirmed", "registry", "expected"),
    [
        pytest.param("", None, False, "", Target(None, ImageRoute.TEST_CLUSTER), id="no cluster at all starts one"),
        pytest.param("", "prod", False, "", Target(None, ImageRoute.TEST_CLUSTER), id="a no leaves the user's alone"),
        pytest.param("local", "prod", True, "", Target(None, ImageRoute.TEST_CLUSTER), id="local wins over a yes"),
        pytest.param("", "kind-a", True, "", Target("kind-a", ImageRoute.KIND, "a"), id="kind loads images itself"),
        pytest.param("k3d-b", None, False, "", Target("k3d-b", ImageRoute.K3D, "b"), id="k3d loads images itself"),
        pytest.param("minikube", None, False, "", Target("minikube", ImageRoute.MINIKUBE), id="minikube too"),
        pytest.param(
            "kind-a",
            None,
            False,
            "example.test/me/",
            Target("kind-a", ImageRoute.REGISTRY, registry="example.test/me"),
            id="a registry that was named is used",
        ),
    ],
)
def test_target_follows_what_the_person_said(
    wanted: str, current: str | None, confirmed: bool, registry: str, expected: Target
) -> None:
    assert choose_target(wanted=wanted, current=current, confirmed=confirmed, registry=registry) == expected


def test_cluster_that_cannot_take_images_asks_for_a_registry() -> None:
    with pytest.raises(NoTarget, match="DEMO_REGISTRY"):
        choose_target(wanted="prod", current=None, confirmed=False, registry="")
