"""`make demo-clean` finds what `make demo` has touched, across runs."""

from pathlib import Path

from tools.demo.record import forget, remember, remembered
from tools.demo.target import ImageRoute, Target, local_target

KIND = Target("kind-a", ImageRoute.KIND, "a")
LOCAL = local_target(None)


def test_nothing_is_remembered_at_first(tmp_path: Path) -> None:
    assert remembered(tmp_path / "demos.json") == ()


def test_each_cluster_is_remembered_once_until_it_is_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "demos.json"
    for target in (KIND, LOCAL, KIND):
        remember(file, target)
    assert remembered(file) == (LOCAL, KIND)
    forget(file, Target("kind-a", ImageRoute.REGISTRY))  # the same cluster, by whatever way its images came
    assert remembered(file) == (LOCAL,)


def test_clusters_of_this_machine_are_told_apart_by_name(tmp_path: Path) -> None:
    file = tmp_path / "demos.json"
    remember(file, LOCAL)
    remember(file, local_target("other"))
    forget(file, LOCAL)
    assert remembered(file) == (local_target("other"),)
