"""Bring a cluster up, take it down, say how it is: the steps in their order, each safe to repeat."""

import os
import shutil
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
from tests.cluster.kube.network import bridge_owner_hint, ensure_network, remove_network
from tests.cluster.kube.node import ensure_node, remove_node
from tests.cluster.kube.paths import ClusterPaths, cache_root, require_disk
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
    return binaries.ensure_binaries(binaries.FOR_CONTROL_PLANE if control_plane_only else binaries.FOR_NODES)


def up(asked: ClusterSpec) -> ClusterSpec:
    """Start a cluster, or complete one that runs in part; on a complete one it only looks."""
    paths = cluster_paths(asked.name)
    with exclusive(paths.lock, f"cluster {asked.name}"):
        spec = wanted_spec(ClusterSpec.load(paths.spec), asked)
        if status(asked.name).is_complete and spec == ClusterSpec.load(paths.spec):
            return spec
        _check_machine(spec, is_new=not paths.spec.exists())
        packages.ensure(packages.FOR_CONTROL_PLANE if spec.control_plane_only else packages.FOR_NODES)
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
            _require_root_for_nodes(spec)
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


def _check_machine(spec: ClusterSpec, is_new: bool) -> None:
    _require_root_for_nodes(spec)
    require_disk(cache_root(), 2, "a cluster's state")
    if is_new and not spec.control_plane_only and (hint := bridge_owner_hint(spec)):
        raise ClusterError(hint)


def _require_root_for_nodes(spec: ClusterSpec) -> None:
    if not spec.control_plane_only and os.geteuid() != 0:
        raise ClusterError("nodes need root (namespaces, mounts, cgroups): run as root, or use --control-plane-only")


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
