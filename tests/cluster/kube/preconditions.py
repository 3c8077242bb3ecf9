"""What this machine must offer, looked at before anything long begins; a refusal is one line and changes nothing."""

import os
import platform
from collections.abc import Sequence

from tests.cluster.kube import binaries, image_build, image_load, packages
from tests.cluster.kube.errors import ClusterError
from tests.cluster.kube.paths import cache_root, require_disk, require_executable
from tests.cluster.kube.spec import ClusterSpec

_STATE_GB = 2.0  # of a running cluster: etcd's data, logs, what pods write


def check_machine(spec: ClusterSpec, image_targets: Sequence[str] = ()) -> None:
    """Check for a cluster, and for images to build and load into it.

    Raises:
        ClusterError: something is missing and cannot be installed here, or the disk is too small for all of it.
    """
    if not spec.control_plane_only:
        require_node_host(os.geteuid(), platform.machine())
    needed = packages.FOR_CONTROL_PLANE if spec.control_plane_only else packages.FOR_NODES
    packages.require_installable([*needed, *(packages.FOR_IMAGES if image_targets else ())])
    require_executable(cache_root())
    parts_gb = missing_gb(spec, image_targets)
    total_gb = sum(parts_gb.values())
    shown = ", ".join(f"{part} {size_gb:g}" for part, size_gb in parts_gb.items() if size_gb)
    require_disk(cache_root(), total_gb, f"what is not in the cache yet ({shown})")


def missing_gb(spec: ClusterSpec, image_targets: Sequence[str]) -> dict[str, float]:
    """What the disk must still take, by part: everything that the cache does not hold yet."""
    return {
        "programs": binaries.missing_gb(binaries.tools_for(spec.control_plane_only)),
        "images": sum(image_build.missing_gb(target) + image_load.missing_gb(target) for target in image_targets),
        "the cluster's state": _STATE_GB,
    }


def require_node_host(user_id: int, machine: str) -> None:
    """Nodes need a superuser and the processor that their programs and images are made for.

    Raises:
        ClusterError: this is another user or another machine.
    """
    if machine != "x86_64":
        raise ClusterError(
            f"nodes run on x86-64 only, and this machine is {machine}; use a cluster of yours, or --control-plane-only"
        )
    if user_id != 0:
        raise ClusterError("nodes need root (namespaces, mounts, cgroups): run as root, or use --control-plane-only")
