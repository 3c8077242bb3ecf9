"""Which cluster `make demo` uses, and which ones `make demo-clean` cleans."""

import pytest

from tools.demo.target import ImageRoute, NoTarget, Target, choose_target, local_target, targets_to_clean

LOCAL = Target(None, ImageRoute.TEST_CLUSTER, "tidegate")
KIND = Target("kind-a", ImageRoute.KIND, "a")
KNOWN = ("prod", "kind-a", "k3d-b", "minikube")


def choose(
    wanted: str = "", *, own: str | None = None, current: str | None = None, confirmed: bool = False, registry: str = ""
) -> Target:
    return choose_target(wanted=wanted, own=own, known=KNOWN, current=current, confirmed=confirmed, registry=registry)


def test_no_cluster_at_all_starts_one() -> None:
    assert choose() == LOCAL


def test_a_no_leaves_the_users_cluster_alone() -> None:
    assert choose(current="prod") == LOCAL


def test_local_wins_over_a_yes() -> None:
    assert choose("local", current="prod", confirmed=True) == LOCAL


@pytest.mark.parametrize("wanted", ["", "local", "other"])
def test_shell_that_points_at_our_own_cluster_means_that_one(wanted: str) -> None:
    assert choose(wanted, own="other") == local_target("other")


@pytest.mark.parametrize(
    "target",
    [KIND, Target("k3d-b", ImageRoute.K3D, "b"), Target("minikube", ImageRoute.MINIKUBE)],
    ids=lambda target: target.route.value,
)
def test_clusters_on_this_machine_load_images_themselves(target: Target) -> None:
    assert target.context is not None
    assert choose(target.context) == target
    assert choose(current=target.context, confirmed=True) == target


def test_registry_that_was_named_is_used() -> None:
    expected = Target("kind-a", ImageRoute.REGISTRY, registry="example.test/me")
    assert choose("kind-a", registry="example.test/me/") == expected


def test_cluster_that_cannot_take_images_asks_for_a_registry() -> None:
    with pytest.raises(NoTarget, match="DEMO_REGISTRY"):
        choose("prod")


def test_misspelt_context_is_told_which_ones_there_are() -> None:
    with pytest.raises(NoTarget, match="no context 'prd'; it has: k3d-b, kind-a, minikube, prod"):
        choose("prd", registry="example.test/me")


def clean(wanted: str = "", *, own: str | None = None, remembered: tuple[Target, ...] = ()) -> tuple[Target, ...]:
    return targets_to_clean(wanted=wanted, own=own, known=KNOWN, remembered=remembered)


def test_cleaning_finds_every_cluster_that_holds_a_demo() -> None:
    assert clean(remembered=(KIND, LOCAL)) == (KIND, LOCAL)


def test_cleaning_leaves_the_local_cluster_when_the_demo_is_elsewhere() -> None:
    assert clean(remembered=(KIND,)) == (KIND,)


def test_cleaning_without_any_demo_stops_the_local_cluster() -> None:
    assert clean() == (LOCAL,)
    assert clean(remembered=(Target("gone", ImageRoute.KIND, "gone"),)) == (LOCAL,)


def test_cleaning_touches_only_what_was_named() -> None:
    assert [target.context for target in clean("prod", remembered=(KIND,))] == ["prod"]
    assert clean("local", remembered=(KIND,)) == (LOCAL,)
    with pytest.raises(NoTarget, match="no context 'prd'"):
        clean("prd", remembered=(KIND,))
