"""What a node's programs are told: the files of containerd, CNI, kubelet and kube-proxy, rendered from the spec."""

import json
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.kube.paths import ClusterPaths
from tests.cluster.kube.spec import ClusterSpec

PAUSE_IMAGE = "localhost/pause:1"
CNI_PROGRAMS = Path("/usr/lib/cni")


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """The folders and files of one node."""

    root: Path
    image_store: Path

    @property
    def socket(self) -> Path:
        return self.root / "containerd.sock"

    @property
    def containerd_state(self) -> Path:
        return self.root / "containerd"

    @property
    def containerd_config(self) -> Path:
        return self.root / "containerd.toml"

    @property
    def cni(self) -> Path:
        return self.root / "cni"

    @property
    def pod_logs(self) -> Path:
        return self.root / "pod-logs"

    @property
    def kubelet_root(self) -> Path:
        return self.root / "kubelet"

    @property
    def kubelet_config(self) -> Path:
        return self.root / "kubelet.json"

    @property
    def proxy_config(self) -> Path:
        return self.root / "proxy.json"


def node_files(paths: ClusterPaths, index: int) -> NodeFiles:
    return NodeFiles(paths.node(index), paths.image_store(index))


def pod_network_name(spec: ClusterSpec, index: int) -> str:
    """The CNI network's name; unique on the host, because CNI keeps its results by it in one place for all."""
    return f"{spec.name}-pods-node{index}"


def containerd_toml(files: NodeFiles) -> str:
    # restrict_oom_score_adj: where lowering it is not permitted, runc fails with "can't get final child's PID".
    # netns_mounts_under_state_dir: the pods' namespaces go away with the node's folder.
    return f"""\
version = 2
root = "{files.image_store}"
state = "{files.containerd_state}"

[grpc]
  address = "{files.socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{files.root / "opt"}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PROGRAMS}"
    conf_dir = "{files.cni}"
"""


def cni_conflist(spec: ClusterSpec, index: int, files: NodeFiles) -> str:
    """Pods hang on a bridge of their node; addresses are handed out from files in the node's own folder."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": spec.node_pod_cidr(index)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(files.root / "addresses"),
        },
    }
    plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
    return json.dumps({"cniVersion": "1.0.0", "name": pod_network_name(spec, index), "plugins": plugins}, indent=2)


def kubelet_configuration(spec: ClusterSpec, paths: ClusterPaths, index: int) -> str:
    files = node_files(paths, index)
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "failSwapOn": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{spec.cgroup(index)}",
        "containerRuntimeEndpoint": f"unix://{files.socket}",
        "podLogsDir": str(files.pod_logs),
        "volumePluginDir": str(files.root / "volume-plugins"),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(paths.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [spec.control_plane_address],
        "clusterDomain": "cluster.local",
        # A developer's disk is often nearly full, and images come from no registry: throw none away.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        # Its accounting looks for the disk behind the root file system, which small virtual machines do not show.
        "localStorageCapacityIsolation": False,
    }
    return json.dumps(document, indent=2)


def kubelet_flags(spec: ClusterSpec, paths: ClusterPaths, index: int) -> list[str]:
    files = node_files(paths, index)
    return [
        f"--config={files.kubelet_config}",
        f"--kubeconfig={files.root / 'kubelet.kubeconfig'}",
        f"--hostname-override={spec.node_name(index)}",
        f"--node-ip={spec.node_address(index)}",
        f"--node-labels=topology.kubernetes.io/zone=zone-{index}",
        f"--root-dir={files.kubelet_root}",
        f"--cert-dir={files.kubelet_root / 'pki'}",
        "--v=2",
    ]


def proxy_configuration(spec: ClusterSpec, paths: ClusterPaths, index: int) -> str:
    files = node_files(paths, index)
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": spec.pod_cidr,
        "clientConnection": {"kubeconfig": str(files.root / "proxy.kubeconfig")},
        "hostnameOverride": spec.node_name(index),
        "conntrack": {"maxPerCore": 0},  # the limit belongs to the whole machine: leave it alone
    }
    return json.dumps(document, indent=2)
