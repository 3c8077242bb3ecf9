"""Programs that come from Debian: found, or installed with apt."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.kube.console import stage
from tests.cluster.kube.errors import ClusterError
from tests.cluster.kube.paths import cache_root
from tests.cluster.kube.shell import run_visibly


@dataclass(frozen=True, slots=True)
class Program:
    """A file that must exist, by name on the PATH or by full path, and the Debian package that brings it."""

    file: str
    package: str

    def is_there(self) -> bool:
        return Path(self.file).exists() if self.file.startswith("/") else shutil.which(self.file) is not None


FOR_CONTROL_PLANE = (Program("openssl", "openssl"),)
FOR_NODES = (
    *FOR_CONTROL_PLANE,
    Program("containerd", "containerd"),
    Program("ctr", "containerd"),
    Program("runc", "runc"),
    Program("/usr/lib/cni/bridge", "containernetworking-plugins"),
    Program("nft", "nftables"),
    Program("iptables", "iptables"),
    Program("conntrack", "conntrack"),
    Program("ip", "iproute2"),
    Program("nsenter", "util-linux"),
    Program("mount", "mount"),
)
FOR_IMAGES = (Program("buildah", "buildah"), Program("skopeo", "skopeo"), Program("mmdebstrap", "mmdebstrap"))

_POLICY = Path("/usr/sbin/policy-rc.d")


def missing_packages(programs: Sequence[Program]) -> tuple[str, ...]:
    """The packages to install so that all programs are there, each once."""
    return tuple(dict.fromkeys(program.package for program in programs if not program.is_there()))


def require_installable(programs: Sequence[Program]) -> None:
    """Check that what is missing can be installed.

    Raises:
        ClusterError: it cannot; names the packages.
    """
    missing = missing_packages(programs)
    names = " ".join(missing)
    if missing and shutil.which("apt-get") is None:
        raise ClusterError(f"these Debian packages are needed and there is no apt-get to install them: {names}")
    if missing and os.geteuid() != 0:
        raise ClusterError(f"these packages are missing: {names}; run as root: apt-get install {names}")


def ensure(programs: Sequence[Program]) -> None:
    """Install what is missing.

    Raises:
        ClusterError: something is missing and cannot be installed here.
    """
    require_installable(programs)
    missing = missing_packages(programs)
    if not missing:
        return
    names = " ".join(missing)
    log = cache_root() / "logs" / "apt.log"
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with stage(f"installing {names}"), _no_service_starts():
        run_visibly(["apt-get", "update"], env=env, log=log)
        run_visibly(["apt-get", "install", "--yes", "--no-install-recommends", *missing], env=env, log=log)
    still_missing = missing_packages(programs)
    if still_missing:
        raise ClusterError(f"apt-get installed {names}, and yet programs of these are missing: {still_missing}")


@contextmanager
def _no_service_starts() -> Iterator[None]:
    """Keep Debian from starting containerd as a service: each node runs a containerd of its own."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)
