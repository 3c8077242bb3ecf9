"""The files and flags that the cluster's programs are given."""

import json
from pathlib import Path

import pytest

from tests.cluster.kube import node_config, packages
from tests.cluster.kube.api_client import ready_node_names
from tests.cluster.kube.binaries import ETCD, KUBERNETES, tool_key
from tests.cluster.kube.certificates import server_names, token_rows
from tests.cluster.kube.control_plane import apiserver_flags, etcd_flags
from tests.cluster.kube.dns import corefile
from tests.cluster.kube.errors import ClusterError
from tests.cluster.kube.go_toolchain import parse_version
from tests.cluster.kube.kubeconfig import render_kubeconfig, write_private
from tests.cluster.kube.paths import TOOLS, ClusterPaths, require_disk
from tests.cluster.kube.spec import ClusterSpec

SPEC = ClusterSpec("demo", nodes=2)
PATHS = ClusterPaths(Path("/cache"), "demo")
FILES = node_config.node_files(PATHS, 1)


def test_kubelet_is_told_its_own_containerd_cgroup_and_dns() -> None:
    config = json.loads(node_config.kubelet_configuration(SPEC, PATHS, 1))
    assert config["containerRuntimeEndpoint"] == "unix:///cache/clusters/demo/node1/containerd.sock"
    assert config["cgroupRoot"] == "/demo-node1"
    assert config["clusterDNS"] == [SPEC.control_plane_address]


def test_everything_that_goes_with_down_lies_below_the_state_folder() -> None:
    config = json.loads(node_config.kubelet_configuration(SPEC, PATHS, 1))
    cni = json.loads(node_config.cni_conflist(SPEC, 1, FILES))
    folders = [config["podLogsDir"], config["volumePluginDir"], cni["plugins"][0]["ipam"]["dataDir"]]
    assert all(folder.startswith(str(PATHS.state)) for folder in folders)
    assert f'state = "{FILES.containerd_state}"' in node_config.containerd_toml(FILES)


def test_images_outlive_the_cluster() -> None:
    assert not FILES.image_store.is_relative_to(PATHS.state)
    assert f'root = "{FILES.image_store}"' in node_config.containerd_toml(FILES)


def test_pods_of_a_node_get_addresses_of_its_range() -> None:
    cni = json.loads(node_config.cni_conflist(SPEC, 2, FILES))
    assert cni["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.244.2.0/24"}]]


def test_control_plane_alone_listens_on_loopback_only() -> None:
    spec = ClusterSpec("cp", nodes=0, api_port=40001, etcd_port=40002, etcd_peer_port=40003)
    flags = apiserver_flags(spec, PATHS)
    assert "--bind-address=127.0.0.1" in flags
    assert "--secure-port=40001" in flags
    assert all("127.0.0.1" in flag for flag in etcd_flags(spec, PATHS) if "http:" in flag)


def test_certificate_names_every_address_of_the_api_server() -> None:
    names = server_names(SPEC)
    for address in (SPEC.control_plane_address, SPEC.kubernetes_service_address, "127.0.0.1"):
        assert f"IP:{address}" in names.split(",")


def test_token_file_puts_nodes_into_the_nodes_group() -> None:
    parts = ("admin", "controller-manager", "scheduler", "proxy", "coredns", *(f"kubelet{i}" for i in range(1, 5)))
    rows = token_rows({part: f"token-{part}" for part in parts}).splitlines()
    assert "token-kubelet2,system:node:node2,kubelet2,system:nodes" in rows
    assert "token-scheduler,system:kube-scheduler,scheduler" in rows


def test_kubeconfig_stands_alone_and_is_private(tmp_path: Path) -> None:
    text = render_kubeconfig(context="demo", server="https://x:1", ca_pem=b"PEM", token="secret")
    config = json.loads(text)
    assert config["current-context"] == "demo"
    assert config["clusters"][0]["cluster"]["certificate-authority-data"] == "UEVN"
    write_private(tmp_path / "kubeconfig", text)
    assert (tmp_path / "kubeconfig").stat().st_mode & 0o077 == 0


def test_corefile_answers_cluster_names_apart_from_all_others() -> None:
    text = corefile(SPEC, PATHS)
    assert text.index("kubernetes cluster.local") < text.index("template ANY ANY")
    assert "/cache/clusters/demo/coredns.kubeconfig demo" in text


def test_a_build_is_named_by_its_pinned_versions(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\nrequire y v1.0.0\n", encoding="utf-8")
    before = tool_key(ETCD, tmp_path)
    (tmp_path / "go.mod").write_text("module x\nrequire y v1.0.1\n", encoding="utf-8")
    assert tool_key(ETCD, tmp_path) != before
    assert tool_key(KUBERNETES, tmp_path) != tool_key(ETCD, tmp_path)


def test_kubernetes_version_matches_its_go_mod() -> None:
    pinned = (TOOLS / "kubernetes" / "go.mod").read_text(encoding="utf-8")
    assert "k8s.io/kubernetes v1.35.4" in pinned
    assert "gitVersion=v1.35.4" in KUBERNETES.defines


@pytest.mark.parametrize(
    ("text", "version"), [("go version go1.26.8 linux/amd64", (1, 26)), ("command not found", None)]
)
def test_go_version_is_read(text: str, version: tuple[int, int] | None) -> None:
    assert parse_version(text) == version


def test_each_missing_package_is_asked_for_once() -> None:
    programs = [packages.Program("/nowhere/ctr", "containerd"), packages.Program("/nowhere/containerd", "containerd")]
    assert packages.missing_packages([*programs, packages.Program("/", "base-files")]) == ("containerd",)


def test_full_disk_is_said_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"needs 1e\+09 GB free .* XDG_CACHE_HOME"):
        require_disk(tmp_path, 1e9, "the image")


def test_only_nodes_that_say_so_are_ready() -> None:
    def node(name: str, status: str) -> dict[str, object]:
        return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": status}]}}

    unborn = {"metadata": {"name": "c"}, "status": {}}
    assert ready_node_names({"items": [node("a", "True"), node("b", "Unknown"), unborn]}) == ["a"]
