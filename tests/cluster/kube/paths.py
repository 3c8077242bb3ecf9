"""Where things lie: everything under one folder of the user's cache."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.kube.errors import ClusterError

REPOSITORY = Path(__file__).resolve().parents[3]
TOOLS = Path(__file__).resolve().parents[1] / "tools"

# A unix socket's path has room for 107 bytes; this is the longest that a node needs below the cache folder.
_LONGEST_SOCKET = "clusters/a-name-of-thirty-characters---/node9/containerd.sock.ttrpc"
_MAX_SOCKET_BYTES = 107


def cache_root() -> Path:
    """The folder of everything that outlives one run: binaries, images, and the clusters' own state."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    root = Path(base).expanduser().absolute() / "tidegate"
    if len(str(root / _LONGEST_SOCKET)) > _MAX_SOCKET_BYTES:
        raise ClusterError(f"{root} is too long a path for unix sockets; set XDG_CACHE_HOME to a shorter one")
    return root


def use_cache_for_temporary_files() -> None:
    """Keep every program that is started from here out of /tmp, which may be a small file system in memory."""
    folder = cache_root() / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = str(folder)


def own_cluster(kubeconfig: str, cache: Path) -> str | None:
    """The name of our cluster that a kubeconfig's path belongs to; None when it is somebody else's."""
    path = Path(kubeconfig).absolute()
    ours = ClusterPaths(cache, path.parent.name)
    return ours.name if path == ours.kubeconfig else None


@dataclass(frozen=True, slots=True)
class ClusterPaths:
    """The folders of one cluster; `state` goes with `down`, the nodes' image stores stay until `down --purge`."""

    cache: Path
    name: str

    @property
    def state(self) -> Path:
        return self.cache / "clusters" / self.name

    @property
    def spec(self) -> Path:
        return self.state / "spec.json"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def processes(self) -> Path:
        return self.state / "processes"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def lock(self) -> Path:
        return self.cache / "clusters" / f"{self.name}.lock"

    def node(self, index: int) -> Path:
        return self.state / f"node{index}"

    def image_store(self, index: int) -> Path:
        """containerd's root of a node: images and their unpacked layers."""
        return self.cache / "containerd" / f"{self.name}-node{index}"


def require_disk(folder: Path, gigabytes: float, purpose: str) -> None:
    """Check for room before a step that fills the disk.

    Raises:
        ClusterError: less than that is free.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        raise ClusterError(
            f"{purpose} needs {gigabytes:g} GB free below {folder}, which has {free:.1f} GB;"
            " free some, or set XDG_CACHE_HOME to a folder on a larger disk"
        )


def require_executable(folder: Path) -> None:
    """Check that programs may run from there.

    Raises:
        ClusterError: it is mounted with `noexec`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise ClusterError(f"{folder} is mounted with noexec; set XDG_CACHE_HOME to a folder where programs may run")
