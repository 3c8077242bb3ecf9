"""One node: containerd, kubelet and kube-proxy in the node's network namespace and control group."""

import shutil
from pathlib import Path

from tests.cluster.kube import node_config
from tests.cluster.kube.api_client import wait_for
from tests.cluster.kube.binaries import Binaries
from tests.cluster.kube.cgroups import ensure_cgroup, remove_cgroup
from tests.cluster.kube.containerd import Containerd
from tests.cluster.kube.control_plane import write_kubeconfig
from tests.cluster.kube.mounts import unmount_below
from tests.cluster.kube.node_config import NodeFiles, node_files
from tests.cluster.kube.paths import ClusterPaths
from tests.cluster.kube.pause_image import pause_archive
from tests.cluster.kube.processes import ProcessTable, end_processes
from tests.cluster.kube.shims import shims_of
from tests.cluster.kube.spec import ClusterSpec

# Where libcni remembers what it did, and where the kubelet links logs; neither path can be configured.
_CNI_RESULTS = Path("/var/lib/cni/results")
_LOG_LINKS = Path("/var/log/containers")


def ensure_node(spec: ClusterSpec, index: int, paths: ClusterPaths, table: ProcessTable, binaries: Binaries) -> None:
    """Start what does not run of a node; the caller waits for it to become ready."""
    files = node_files(paths, index)
    netns = spec.netns(spec.node_name(index))
    ensure_cgroup(spec.cgroup(index))
    _write_files(spec, index, paths, files)
    table.ensure(f"containerd{index}", ["containerd", "--config", str(files.containerd_config)], netns)
    containerd = Containerd(files.socket)
    wait_for(f"containerd of node {index} answers", containerd.answers, table.first_ended)
    if node_config.PAUSE_IMAGE not in containerd.images():
        containerd.import_archive(pause_archive(binaries.path("pause"), node_config.PAUSE_IMAGE))
    flags = node_config.kubelet_flags(spec, paths, index)
    table.ensure(f"kubelet{index}", [str(binaries.path("kubelet")), *flags], netns)
    table.ensure(f"proxy{index}", [str(binaries.path("kube-proxy")), f"--config={files.proxy_config}"], netns)


def remove_node(spec: ClusterSpec, index: int, paths: ClusterPaths, table: ProcessTable) -> None:
    """End a node's processes and containers, and take away their mounts, shims and control groups."""
    files = node_files(paths, index)
    table.stop([f"kubelet{index}", f"proxy{index}"], grace_s=3)
    if table.is_running(f"containerd{index}"):
        Containerd(files.socket).remove_containers()
    table.stop([f"containerd{index}"], grace_s=5)
    end_processes(shims_of(files.socket), grace_s=0)
    remove_cgroup(spec.cgroup(index))
    unmount_below(files.root)
    _remove_traces(files)


def _write_files(spec: ClusterSpec, index: int, paths: ClusterPaths, files: NodeFiles) -> None:
    for folder in (files.root, files.cni, files.pod_logs, files.kubelet_root, files.image_store):
        folder.mkdir(parents=True, exist_ok=True)
    for part, name in ((f"kubelet{index}", "kubelet"), ("proxy", "proxy")):
        write_kubeconfig(spec, paths, part, f"node{index}/{name}.kubeconfig")
    texts = {
        files.containerd_config: node_config.containerd_toml(files),
        files.cni / "10-pods.conflist": node_config.cni_conflist(spec, index, files),
        files.kubelet_config: node_config.kubelet_configuration(spec, paths, index),
        files.proxy_config: node_config.proxy_configuration(spec, paths, index),
    }
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


def _remove_traces(files: NodeFiles) -> None:
    # Every result names the pod's namespace, whose file lies in the node's folder.
    own = str(files.root).encode()
    for result in _CNI_RESULTS.glob("*"):
        if own + b"/" in result.read_bytes():
            result.unlink(missing_ok=True)
    for link in _LOG_LINKS.glob("*.log"):
        if link.is_symlink() and str(link.readlink()).startswith(str(files.root)):
            link.unlink(missing_ok=True)
    shutil.rmtree(files.root, ignore_errors=True)
