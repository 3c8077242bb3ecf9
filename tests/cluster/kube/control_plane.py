"""etcd, API server, controller manager and scheduler: the same for a control plane alone and for a cluster."""

import socket

from tests.cluster.kube.api_client import ApiClient, wait_for
from tests.cluster.kube.binaries import Binaries
from tests.cluster.kube.certificates import ensure_credentials, read_token
from tests.cluster.kube.kubeconfig import render_kubeconfig, write_private
from tests.cluster.kube.network import CONTROL_PLANE
from tests.cluster.kube.paths import ClusterPaths
from tests.cluster.kube.processes import ProcessTable
from tests.cluster.kube.spec import ClusterSpec

# The order of stopping: writers before what they write to.
CONTROL_PLANE_PROCESSES = ("coredns", "scheduler", "controller-manager", "apiserver", "etcd")


def free_loopback_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def etcd_flags(spec: ClusterSpec, paths: ClusterPaths) -> list[str]:
    client = f"http://127.0.0.1:{spec.etcd_port}"
    peer = f"http://127.0.0.1:{spec.etcd_peer_port}"
    return [
        f"--data-dir={paths.state / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",  # the data goes with the cluster
        "--log-level=warn",
    ]


def apiserver_flags(spec: ClusterSpec, paths: ClusterPaths) -> list[str]:
    pki = paths.pki
    return [
        f"--etcd-servers=http://127.0.0.1:{spec.etcd_port}",
        f"--bind-address={spec.control_plane_address}",
        f"--advertise-address={spec.control_plane_address}",
        f"--secure-port={spec.api_port}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--token-auth-file={pki / 'tokens.csv'}",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={spec.service_cidr}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged",
        # Logs and exec: reach the kubelet by its address (its name is in no DNS), and say who asks.
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
    ] + (["--endpoint-reconciler-type=none"] if spec.control_plane_only else [])


def controller_manager_flags(spec: ClusterSpec, paths: ClusterPaths) -> list[str]:
    return [
        f"--kubeconfig={paths.state / 'controller-manager.kubeconfig'}",
        f"--root-ca-file={paths.pki / 'ca.crt'}",
        f"--service-account-private-key-file={paths.pki / 'sa.key'}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--secure-port=0",  # nobody scrapes it, and a port is one more thing that can be taken
    ]


def scheduler_flags(paths: ClusterPaths) -> list[str]:
    return [f"--kubeconfig={paths.state / 'scheduler.kubeconfig'}", "--leader-elect=false", "--secure-port=0"]


def api_client(spec: ClusterSpec, paths: ClusterPaths) -> ApiClient:
    return ApiClient(spec.api_url, paths.pki / "ca.crt", read_token(paths, "admin"))


def write_kubeconfig(spec: ClusterSpec, paths: ClusterPaths, part: str, file_name: str) -> None:
    """Give one part of the cluster its way to the API server."""
    text = render_kubeconfig(
        context=spec.name,
        server=spec.api_url,
        ca_pem=(paths.pki / "ca.crt").read_bytes(),
        token=read_token(paths, part),
    )
    write_private(paths.state / file_name, text)


def ensure_control_plane(spec: ClusterSpec, paths: ClusterPaths, table: ProcessTable, binaries: Binaries) -> None:
    """Start what does not run, and wait until the API server answers and pods may be created."""
    ensure_credentials(spec, paths)
    write_kubeconfig(spec, paths, "admin", "kubeconfig")
    for part in ("controller-manager", "scheduler"):
        write_kubeconfig(spec, paths, part, f"{part}.kubeconfig")
    netns = None if spec.control_plane_only else spec.netns(CONTROL_PLANE)

    def ensure(name: str, program: str, flags: list[str]) -> None:
        table.ensure(name, [str(binaries.path(program)), *flags], netns)

    ensure("etcd", "etcd", etcd_flags(spec, paths))
    ensure("apiserver", "kube-apiserver", apiserver_flags(spec, paths))
    client = api_client(spec, paths)
    wait_for("the API server gets ready", client.is_ready, table.first_ended)
    # After that: before the roles are there they are refused, and end after ten seconds of it on a busy machine.
    ensure("controller-manager", "kube-controller-manager", controller_manager_flags(spec, paths))
    ensure("scheduler", "kube-scheduler", scheduler_flags(paths))
    wait_for("the default service account appears", client.has_default_service_account, table.first_ended)
