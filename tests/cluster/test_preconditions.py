"""What is refused before anything long begins."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.kube.binaries import FOR_NODES, KUBERNETES, build_environment, tool_key
from tests.cluster.kube.errors import ClusterError
from tests.cluster.kube.paths import TOOLS, cache_root, own_cluster
from tests.cluster.kube.preconditions import missing_gb, require_node_host
from tests.cluster.kube.shell import succeeds
from tests.cluster.kube.spec import ClusterSpec

CACHE = Path("/cache/tidegate")


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder with nothing in it; not pytest's own, whose path is too long for the sockets below it."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        yield cache_root()


@pytest.mark.usefixtures("empty_cache")
def test_disk_is_asked_for_everything_at_once() -> None:
    parts_gb = missing_gb(ClusterSpec("demo"), ("operator", "server"))
    assert parts_gb["programs"] == sum(tool.disk_gb for tool in FOR_NODES)
    assert parts_gb["images"] > 20
    assert 30 < sum(parts_gb.values()) < 40  # 40 is what the README asks for


def test_what_the_cache_holds_needs_no_disk_again(empty_cache: Path) -> None:
    before_gb = missing_gb(ClusterSpec("demo"), ())["programs"]
    (empty_cache / "bin" / tool_key(KUBERNETES, TOOLS / KUBERNETES.folder)).mkdir(parents=True)
    assert missing_gb(ClusterSpec("demo"), ())["programs"] == pytest.approx(before_gb - KUBERNETES.disk_gb)


@pytest.mark.parametrize(
    ("user_id", "machine", "said"),
    [(0, "aarch64", "x86-64 only, and this machine is aarch64"), (1000, "x86_64", "need root")],
)
def test_machine_that_cannot_run_nodes_is_told_why(user_id: int, machine: str, said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        require_node_host(user_id, machine)


@pytest.mark.parametrize(
    ("kubeconfig", "owner"),
    [
        ("/cache/tidegate/clusters/tidegate/kubeconfig", "tidegate"),
        ("/cache/tidegate/clusters/other/kubeconfig", "other"),
        ("/cache/tidegate/clusters/tidegate/node1/kubelet.kubeconfig", None),
        ("/home/me/.kube/config", None),
        ("/home/me/.kube/config:/cache/tidegate/clusters/tidegate/kubeconfig", None),
        ("", None),
    ],
)
def test_only_a_kubeconfig_of_our_cache_is_ours(kubeconfig: str, owner: str | None) -> None:
    assert own_cluster(kubeconfig, CACHE) == owner


def test_go_keeps_modules_below_the_cache_unless_told_otherwise() -> None:
    assert build_environment({}, CACHE)["GOMODCACHE"] == "/cache/tidegate/go-modules"
    assert build_environment({"GOMODCACHE": "/big"}, CACHE)["GOMODCACHE"] == "/big"


def test_program_that_is_not_installed_does_not_succeed() -> None:
    assert succeeds(["true"])
    assert not succeeds(["no-such-program"])
