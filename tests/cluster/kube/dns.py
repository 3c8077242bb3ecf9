"""Cluster DNS: CoreDNS beside the control plane, at the address that every pod is given."""

from tests.cluster.kube.binaries import Binaries
from tests.cluster.kube.control_plane import write_kubeconfig
from tests.cluster.kube.network import CONTROL_PLANE
from tests.cluster.kube.paths import ClusterPaths
from tests.cluster.kube.processes import ProcessTable
from tests.cluster.kube.spec import ClusterSpec


def corefile(spec: ClusterSpec, paths: ClusterPaths) -> str:
    """Names of the cluster are answered; all others do not exist, at once: pods have no way out of this machine."""
    return f"""\
.:53 {{
    bind {spec.control_plane_address}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {paths.state / "coredns.kubeconfig"} {spec.name}
        ttl 5
        fallthrough in-addr.arpa
    }}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def ensure_dns(spec: ClusterSpec, paths: ClusterPaths, table: ProcessTable, binaries: Binaries) -> None:
    write_kubeconfig(spec, paths, "coredns", "coredns.kubeconfig")
    config = paths.state / "Corefile"
    config.write_text(corefile(spec, paths), encoding="utf-8")
    table.ensure("coredns", [str(binaries.path("coredns")), "-conf", str(config)], spec.netns(CONTROL_PLANE))
