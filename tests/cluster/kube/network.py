"""The cluster's network: one bridge, and one network namespace per machine plugged into it.

Machines are the control plane and the nodes. Pods get addresses of their node's range from the CNI bridge plugin; the
routes between the ranges, and from the host to pods and Services, are plain routes over the bridge.
"""

import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.kube.errors import ClusterError
from tests.cluster.kube.shell import run, succeeds
from tests.cluster.kube.spec import ClusterSpec

CONTROL_PLANE = "control-plane"


def machine_addresses(spec: ClusterSpec) -> dict[str, str]:
    """Every machine with its address on the bridge."""
    nodes = {spec.node_name(index): spec.node_address(index) for index in spec.node_indexes}
    return {CONTROL_PLANE: spec.control_plane_address, **nodes}


def machine_commands(spec: ClusterSpec, machine: str, address: str) -> list[str]:
    """The commands, for `ip`, that make one machine and plug it into the bridge."""
    netns = spec.netns(machine)
    port = _bridge_port(spec, machine)
    return [
        f"netns add {netns}",
        f"link add {port} type veth peer name eth0 netns {netns}",
        f"link set {port} master {spec.bridge} up",
        f"-n {netns} address add {address}/24 dev eth0",
        f"-n {netns} link set eth0 up",
        f"-n {netns} link set lo up",
        f"-n {netns} route add default via {spec.host_address}",
    ]


def route_commands(spec: ClusterSpec) -> list[str]:
    """The routes to pods and Services on the host and on every machine; each may be repeated."""
    commands = []
    for machine in ("host", *machine_addresses(spec)):
        prefix = "" if machine == "host" else f"-n {spec.netns(machine)} "
        for index in spec.node_indexes:
            if machine != spec.node_name(index):
                commands.append(f"{prefix}route replace {spec.node_pod_cidr(index)} via {spec.node_address(index)}")
        if machine in ("host", CONTROL_PLANE):
            # kube-proxy on the first node turns Service addresses into pods, for those who have no kube-proxy.
            commands.append(f"{prefix}route replace {spec.service_cidr} via {spec.node_address(1)}")
    return commands


def clashing_route(spec: ClusterSpec, routes: Sequence[dict[str, Any]]) -> str | None:
    """A route of the host that overlaps with what the cluster wants to use; None when all is free."""
    wanted = [ipaddress.ip_network(cidr) for cidr in (spec.machine_subnet, spec.pod_cidr, spec.service_cidr)]
    for route in routes:
        if route["dst"] == "default" or route.get("dev") == spec.bridge:
            continue
        taken = ipaddress.ip_network(route["dst"], strict=False)
        if any(taken.version == network.version and taken.overlaps(network) for network in wanted):
            return f"{route['dst']} (device {route.get('dev', '?')})"
    return None


def require_free_subnets(spec: ClusterSpec) -> None:
    """Check that a cluster that is not there yet can have its addresses.

    Raises:
        ClusterError: another network of this host uses them.
    """
    if _exists(f"/sys/class/net/{spec.bridge}"):
        return
    clash = clashing_route(spec, json.loads(run(["ip", "-json", "route"])))
    if clash:
        raise ClusterError(
            f"this host already routes {clash}, which overlaps with the cluster's networks {spec.machine_subnet},"
            f" {spec.pod_cidr}, {spec.service_cidr}; choose others with --slot 1, 2 or 3"
        )


def ensure_network(spec: ClusterSpec) -> None:
    """Make the bridge, the machines and the routes that are not there yet."""
    if not _exists(f"/sys/class/net/{spec.bridge}"):
        _ip(f"link add {spec.bridge} type bridge")
        _ip(f"address add {spec.host_address}/24 dev {spec.bridge}")
        _ip(f"link set {spec.bridge} up")
    for machine, address in machine_addresses(spec).items():
        if not _exists(f"/run/netns/{spec.netns(machine)}"):
            for command in machine_commands(spec, machine, address):
                _ip(command)
            _forward_between_interfaces(spec.netns(machine))
    for command in route_commands(spec):
        _ip(command)


def remove_network(spec: ClusterSpec) -> None:
    """Take everything away again; routes go with the bridge, the machines' ends of the cables with their namespace."""
    for machine in machine_addresses(spec):
        succeeds(["ip", "netns", "delete", spec.netns(machine)])
    succeeds(["ip", "link", "delete", spec.bridge])


def bridge_owner_hint(spec: ClusterSpec) -> str | None:
    """Why a new cluster may not use its bridge: it exists already, and nothing of ours says so."""
    if _exists(f"/sys/class/net/{spec.bridge}"):
        return (
            f"the bridge {spec.bridge} exists, of another cluster or of one that was not stopped;"
            f" choose another with --slot, or remove it: ip link delete {spec.bridge}"
        )
    return None


def _bridge_port(spec: ClusterSpec, machine: str) -> str:
    short = "cp" if machine == CONTROL_PLANE else machine.replace("node", "n")
    return f"tg{spec.slot}{short}"


def _forward_between_interfaces(netns: str) -> None:
    setting = "echo 1 > /proc/sys/net/ipv4/ip_forward"
    run(["nsenter", f"--net=/run/netns/{netns}", "sh", "-c", setting])


def _exists(path: str) -> bool:
    return Path(path).exists()


def _ip(command: str) -> None:
    run(["ip", *command.split()])
