"""What `up` decides before it touches anything."""

from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from tests.cluster.kube.errors import ClusterError
from tests.cluster.kube.lifecycle import wanted_spec
from tests.cluster.kube.spec import MAX_NODES, MAX_SLOT, ClusterSpec

ONE_NODE = ClusterSpec("demo")


def test_spec_survives_its_file(tmp_path: Path) -> None:
    spec = ClusterSpec("demo", slot=2, nodes=3, api_port=1234)
    spec.save(tmp_path / "spec.json")
    assert ClusterSpec.load(tmp_path / "spec.json") == spec


def test_no_file_means_no_cluster(tmp_path: Path) -> None:
    assert ClusterSpec.load(tmp_path / "spec.json") is None


def test_networks_of_all_slots_are_apart() -> None:
    specs = [ClusterSpec("demo", slot=slot) for slot in range(MAX_SLOT + 1)]
    networks = [IPv4Network(cidr) for s in specs for cidr in (s.machine_subnet, s.pod_cidr, s.service_cidr)]
    assert not any(a.overlaps(b) for i, a in enumerate(networks) for b in networks[:i])


def test_nodes_have_addresses_of_their_own_inside_the_clusters_networks() -> None:
    spec = ClusterSpec("demo", nodes=MAX_NODES)
    machines = IPv4Network(spec.machine_subnet)
    addresses = [spec.host_address, spec.control_plane_address, *map(spec.node_address, spec.node_indexes)]
    assert len(set(addresses)) == len(addresses)
    assert all(IPv4Network(address).subnet_of(machines) for address in addresses)
    pods = [IPv4Network(spec.node_pod_cidr(index)) for index in spec.node_indexes]
    assert all(network.subnet_of(IPv4Network(spec.pod_cidr)) for network in pods)


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        ({"name": "Bad_Name"}, "--name"),
        ({"name": "x" * 31}, "--name"),
        ({"name": "demo", "slot": MAX_SLOT + 1}, "--slot"),
        ({"name": "demo", "nodes": MAX_NODES + 1}, "--nodes"),
    ],
)
def test_wrong_argument_is_refused_and_named(arguments: dict[str, object], flag: str) -> None:
    with pytest.raises(ClusterError, match=flag):
        ClusterSpec(**arguments)  # type: ignore[arg-type]  # the wrong values are the point


def test_running_cluster_grows() -> None:
    assert wanted_spec(ONE_NODE, replace(ONE_NODE, nodes=2)).nodes == 2


def test_running_cluster_keeps_its_nodes() -> None:
    assert wanted_spec(replace(ONE_NODE, nodes=2), ONE_NODE).nodes == 2


def test_running_control_plane_keeps_its_ports() -> None:
    running = ClusterSpec("cp", nodes=0, api_port=40001)
    assert wanted_spec(running, ClusterSpec("cp", nodes=0)) == running


@pytest.mark.parametrize("asked", [replace(ONE_NODE, nodes=0), replace(ONE_NODE, slot=1)])
def test_cluster_of_another_kind_must_go_down_first(asked: ClusterSpec) -> None:
    with pytest.raises(ClusterError, match="down --name demo"):
        wanted_spec(ONE_NODE, asked)
