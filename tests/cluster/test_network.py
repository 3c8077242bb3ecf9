"""Which addresses, routes, cgroups and mounts are ours."""

from pathlib import Path

import pytest

from tests.cluster.kube.cgroups import Hierarchies, parse_hierarchies
from tests.cluster.kube.mounts import mounts_below
from tests.cluster.kube.network import clashing_route, machine_commands, route_commands
from tests.cluster.kube.shims import belongs_to
from tests.cluster.kube.spec import MAX_NODES, MAX_SLOT, ClusterSpec

TWO_NODES = ClusterSpec("demo", nodes=2)


@pytest.mark.parametrize(
    ("destination", "clashes"),
    [
        ("default", False),
        ("192.168.1.0/24", False),
        ("172.30.250.128/25", True),
        ("10.0.0.0/8", True),
        ("10.96.0.1", True),
        ("fd00::/8", False),
    ],
)
def test_routes_of_the_host_that_overlap_are_found(destination: str, clashes: bool) -> None:
    assert (clashing_route(TWO_NODES, [{"dst": destination, "dev": "eth0"}]) is not None) == clashes


def test_routes_over_the_clusters_own_bridge_do_not_clash() -> None:
    assert clashing_route(TWO_NODES, [{"dst": "172.30.250.0/24", "dev": TWO_NODES.bridge}]) is None


def test_each_node_reaches_the_pods_of_the_others_and_not_its_own_by_route() -> None:
    routes = route_commands(TWO_NODES)
    assert "-n demo-node1 route replace 10.244.2.0/24 via 172.30.250.12" in routes
    assert not any("demo-node1" in route and "10.244.1.0/24" in route for route in routes)


def test_host_reaches_pods_and_services() -> None:
    routes = route_commands(TWO_NODES)
    assert "route replace 10.244.2.0/24 via 172.30.250.12" in routes
    assert "route replace 10.96.0.0/16 via 172.30.250.11" in routes


def test_interface_names_fit_into_the_kernels_fifteen_characters() -> None:
    spec = ClusterSpec("a-name-of-thirty-characters-xx", slot=MAX_SLOT, nodes=MAX_NODES)
    for machine in ("control-plane", spec.node_name(MAX_NODES)):
        added = next(line for line in machine_commands(spec, machine, "10.0.0.1") if line.startswith("link add"))
        assert len(added.split()[2]) <= 15
    assert len(spec.bridge) <= 15


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", Hierarchies((), Path("/sys/fs/cgroup"))),
        (
            "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0",
            Hierarchies((Path("/sys/fs/cgroup/cpu"),), Path("/sys/fs/cgroup/unified")),
        ),
        ("proc /proc proc rw 0 0", Hierarchies((), None)),
    ],
    ids=["version 2", "mixed", "none"],
)
def test_cgroup_hierarchies_are_told_apart(mounts: str, expected: Hierarchies) -> None:
    assert parse_hierarchies(mounts) == expected


def test_only_mounts_below_the_folder_are_unmounted_innermost_first() -> None:
    line = "36 35 98:0 / {} rw - ext4 /dev/x rw"
    points = ["/state/node1", "/state/node1/a\\040b/c", "/state/node10/x", "/"]
    mountinfo = "\n".join(line.format(point) for point in points)
    assert mounts_below(Path("/state/node1"), mountinfo) == ["/state/node1/a b/c", "/state/node1"]


def test_only_shims_of_our_containerd_are_ours() -> None:
    command = b"/usr/bin/containerd-shim-runc-v2\0-namespace\0k8s.io\0-address\0/state/node1/containerd.sock\0"
    assert belongs_to(command, Path("/state/node1/containerd.sock"))
    assert not belongs_to(command, Path("/run/containerd/containerd.sock"))
    assert not belongs_to(b"vim\0/state/node1/containerd.sock\0", Path("/state/node1/containerd.sock"))
