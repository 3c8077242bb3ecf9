"""Cluster DNS: CoreDNS beside the control plane, at the address that every pod is given."""

from tests.cluster.kube.binaries import Binaries
from tests.cluster.kube.control_plane import write_kubeconfig
from tests.cluster.kube.network import CONTROL_PLANE
from tests.cluster.kube.paths import ClusterPaths
from tests.cluster.kube.processes import ProcessTable
from tests.cluster.kube.spec import ClusterSpec

# Two blocks, because in one block `template` would come before `kubernetes`, whatever the order of the lines.
_COREFILE = """\
cluster.local:53 in-addr.arpa:53 {
    bind ADDRESS
    errors
    kubernetes cluster.local in-addr.arpa {
        kubeconfig KUBECONFIG CONTEXT
        ttl 5
    }
}
.:53 {
    bind ADDRESS
    errors
    template ANY ANY {
        rcode NXDOMAIN
    }
}
"""


def corefile(spec: ClusterSpec, paths: ClusterPaths) -> str:
    """Names of the cluster are answered; all others do not exist, at once: pods have no way out of this machine."""
    text = _COREFILE.replace("ADDRESS", spec.control_plane_address)
    return text.replace("KUBECONFIG", str(paths.state / "coredns.kubeconfig")).replace("CONTEXT", spec.name)


def ensure_dns(spec: ClusterSpec, paths: ClusterPaths, table: ProcessTable, binaries: Binaries) -> None:
    write_kubeconfig(spec, paths, "coredns", "coredns.kubeconfig")
    config = paths.state / "Corefile"
    config.write_text(corefile(spec, paths), encoding="utf-8")
    table.ensure("coredns", [str(binaries.path("coredns")), "-conf", str(config)], spec.netns(CONTROL_PLANE))
