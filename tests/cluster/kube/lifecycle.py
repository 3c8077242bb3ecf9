"""Bring a cluster up, take it down, say how it is: the steps in their order, each safe to repeat."""

import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.cluster.kube import binaries, packages
from tests.cluster.kube.api_client import wait_for
from tests.cluster.kube.console import say, stage
from tests.cluster.kube.control_plane import (
    CONTROL_PLANE_PROCESSES,
    api_client,
    ensure_control_plane,
    free_loopback_ports,
)
from tests.cluster.kube.dns import ensure_dns
from tests.cluster.kube.errors import ClusterError
from tests.cluster.kube.lock import exclusive
from tests.cluster.kube.network import bridge_owner_hint, ensure_network, remove_network, require_free_subnets
from tests.cluster.kube.node import ensure_node, remove_node
from tests.cluster.kube.paths import ClusterPaths, cache_root
from tests.cluster.kube.preconditions import check_machine, require_node_host
from tests.cluster.kube.processes import ProcessTable, is_alive
from tests.cluster.kube.spec import ClusterSpec


@dataclass(frozen=True, slots=True)
class Status:
    """How a cluster is right now; `spec` is None where there is none."""

    spec: ClusterSpec | None
    running: tuple[str, ...]
    ended: tuple[str, ...]
    api_ready: bool
    ready_nodes: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to start."""
        if self.spec is None or self.ended or not self.api_ready:
            return False
        return set(self.ready_nodes) == {self.spec.node_name(index) for index in self.spec.node_indexes}


def cluster_paths(name: str) -> ClusterPaths:
    return ClusterPaths(cache_root(), name)


def wanted_spec(existing: ClusterSpec | None, asked: ClusterSpec) -> ClusterSpec:
    """What `up` brings about: a running cluster may grow by nodes, and keeps everything else.

    Raises:
        ClusterError: it is of the other kind, or lies in another slot.
    """
    if existing is None:
        return asked
    if existing.control_plane_only != asked.control_plane_only:
        raise ClusterError(
            f"cluster {asked.name!r} exists and is of the other kind; run `down --name {asked.name}` first"
        )
    if existing.slot != asked.slot:
        raise ClusterError(
            f"cluster {asked.name!r} exists in slot {existing.slot}; run `down --name {asked.name}` first"
        )
    return replace(existing, nodes=max(existing.nodes, asked.nodes))


def tool_folders(control_plane_only: bool) -> binaries.Binaries:
    """The cluster's programs, built now where they are missing."""
    return binaries.ensure_binaries(binaries.tools_for(control_plane_only))


def check(name: str, image_targets: Sequence[str]) -> None:
    """Refuse now what `up`, building and loading images would refuse later; changes nothing.

    Raises:
        ClusterError: says what is in the way.
    """
    check_machine(ClusterSpec.load(cluster_paths(name).spec) or ClusterSpec(name), image_targets)


def slot_of(name: str) -> int | None:
    """The slot of a running cluster; None where there is none."""
    spec = ClusterSpec.load(cluster_paths(name).spec)
    return None if spec is None else spec.slot


def up(asked: ClusterSpec) -> ClusterSpec:
    """Start a cluster, or complete one that runs in part; on a complete one it only looks."""
    paths = cluster_paths(asked.name)
    with exclusive(paths.lock, f"cluster {asked.name}"):
        spec = wanted_spec(ClusterSpec.load(paths.spec), asked)
        if status(asked.name).is_complete and spec == ClusterSpec.load(paths.spec):
            return spec
        check_machine(spec)
        if not paths.spec.exists() and not spec.control_plane_only and (hint := bridge_owner_hint(spec)):
            raise ClusterError(hint)
        packages.ensure(packages.FOR_CONTROL_PLANE if spec.control_plane_only else packages.FOR_NODES)
        if not spec.control_plane_only:
            require_free_subnets(spec)
        programs = tool_folders(spec.control_plane_only)
        if spec.control_plane_only and not paths.spec.exists():
            api, etcd, peer = free_loopback_ports(3)
            spec = replace(spec, api_port=api, etcd_port=etcd, etcd_peer_port=peer)
        paths.state.mkdir(parents=True, exist_ok=True)
        _start(spec, paths, programs)
        return spec


def down(name: str, purge: bool = False) -> None:
    """End a cluster and everything it left on the host.

    Args:
        purge: its nodes' image stores too; without it the next `up` finds the images loaded.
    """
    paths = cluster_paths(name)
    with exclusive(paths.lock, f"cluster {name}"):
        spec = ClusterSpec.load(paths.spec)
        if spec is None:
            say(f"there is no cluster {name!r}")
        else:
            if not spec.control_plane_only:
                require_node_host(os.geteuid(), platform.machine())
            with stage(f"stopping cluster {name!r}"):
                table = ProcessTable(paths.processes, paths.logs)
                for index in spec.node_indexes:
                    remove_node(spec, index, paths, table)
                table.stop(CONTROL_PLANE_PROCESSES, grace_s=2)
                if not spec.control_plane_only:
                    remove_network(spec)
        shutil.rmtree(paths.state, ignore_errors=True)
        if purge:
            for store in (paths.cache / "containerd").glob(f"{name}-node*"):
                shutil.rmtree(store)


def status(name: str) -> Status:
    """Look at a cluster, changing nothing."""
    paths = cluster_paths(name)
    spec = ClusterSpec.load(paths.spec)
    if spec is None:
        return Status(None, (), (), False, ())
    records = ProcessTable(paths.processes, paths.logs).records()
    running = tuple(record.name for record in records if is_alive(record))
    ended = tuple(record.name for record in records if record.name not in running)
    if "apiserver" not in running:
        return Status(spec, running, ended, False, ())
    client = api_client(spec, paths)
    return Status(spec, running, ended, client.is_ready(), tuple(client.ready_nodes()))


def _start(spec: ClusterSpec, paths: ClusterPaths, programs: binaries.Binaries) -> None:
    table = ProcessTable(paths.processes, paths.logs)
    table.forget_ended()
    # Written before anything starts, so that `down` can always clean up after a start that failed half-way.
    spec.save(paths.spec)
    if not spec.control_plane_only:
        ensure_network(spec)
    with stage("control plane"):
        ensure_control_plane(spec, paths, table, programs)
    if spec.control_plane_only:
        return
    with stage(f"{spec.nodes} node(s)"):
        ensure_dns(spec, paths, table, programs)
        for index in spec.node_indexes:
            ensure_node(spec, index, paths, table, programs)
        _wait_for_nodes(spec, paths, table)


def _wait_for_nodes(spec: ClusterSpec, paths: ClusterPaths, table: ProcessTable) -> None:
    wanted = {spec.node_name(index) for index in spec.node_indexes}
    client = api_client(spec, paths)

    wait_for("the nodes get ready", lambda: wanted <= set(client.ready_nodes()), table.first_ended)
