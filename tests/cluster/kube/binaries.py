"""The cluster's programs, built from Go modules at the versions that `tools/*/go.mod` pins."""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.kube.console import stage
from tests.cluster.kube.go_toolchain import ensure_go
from tests.cluster.kube.lock import exclusive
from tests.cluster.kube.paths import TOOLS, cache_root, require_disk
from tests.cluster.kube.shell import run_visibly

KUBERNETES_VERSION = "v1.35.4"


@dataclass(frozen=True, slots=True)
class Tool:
    """Programs that share one `go.mod`.

    Attributes:
        folder: below `tools/`.
        programs: program name -> Go package.
        defines: values that the linker sets.
        disk_gb: what building takes while it lasts, source and objects included.
    """

    folder: str
    programs: tuple[tuple[str, str], ...]
    disk_gb: float
    defines: str = ""

    @property
    def flags(self) -> list[str]:
        return ["-trimpath", "-ldflags", f"-s -w {self.defines}".strip()]


_COMMAND = "k8s.io/kubernetes/cmd"
# Without its version the API server calls itself v0.0.0, and clients that check versions refuse it.
KUBERNETES = Tool(
    "kubernetes",
    tuple(
        (name, f"{_COMMAND}/{name}")
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
    ),
    9,
    f"-X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}",
)
ETCD = Tool("etcd", (("etcd", "go.etcd.io/etcd/server/v3"),), 1)
COREDNS = Tool("coredns", (("coredns", "github.com/coredns/coredns"),), 1)
HELM = Tool("helm", (("helm", "helm.sh/helm/v3/cmd/helm"),), 1)
PAUSE = Tool("pause", (("pause", "."),), 0.1)

FOR_CONTROL_PLANE = (KUBERNETES, ETCD, HELM)
FOR_NODES = (*FOR_CONTROL_PLANE, COREDNS, PAUSE)


def tools_for(control_plane_only: bool) -> tuple[Tool, ...]:
    return FOR_CONTROL_PLANE if control_plane_only else FOR_NODES


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where the built programs lie."""

    folders: tuple[Path, ...]

    def path(self, program: str) -> Path:
        for folder in self.folders:
            if (folder / program).exists():
                return folder / program
        raise FileNotFoundError(program)


def tool_key(tool: Tool, folder: Path) -> str:
    """Name a build by everything that goes into it, so that a change of version is another folder."""
    digest = hashlib.sha256(" ".join(tool.flags).encode())
    for source in sorted(path for path in folder.iterdir() if path.suffix in (".mod", ".sum", ".go")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return f"{tool.folder}-{digest.hexdigest()[:12]}"


def ensure_binaries(tools: tuple[Tool, ...]) -> Binaries:
    """Build what is not built yet; only one process builds at a time."""
    wanted = {tool: _folder(tool) for tool in tools}
    if not all(folder.exists() for folder in wanted.values()):
        with exclusive(cache_root() / "bin" / ".lock", "building the cluster's programs"):
            for tool, folder in wanted.items():
                if not folder.exists():
                    _build(tool, folder)
    return Binaries(tuple(wanted.values()))


def missing_gb(tools: tuple[Tool, ...]) -> float:
    """What building those that are not built yet takes of the disk."""
    return sum(tool.disk_gb for tool in tools if not _folder(tool).exists())


def build_environment(environment: Mapping[str, str], cache: Path) -> dict[str, str]:
    """What Go is told; modules come to the cache too, because Go's own place does not follow XDG_CACHE_HOME."""
    return {
        "GOMODCACHE": str(cache / "go-modules"),
        **environment,
        "CGO_ENABLED": "0",
        "GOWORK": "off",
        "GOFLAGS": "-mod=readonly -modcacherw",  # writable, or `rm -r` of the cache would fail
    }


def _folder(tool: Tool) -> Path:
    return cache_root() / "bin" / tool_key(tool, TOOLS / tool.folder)


def _build(tool: Tool, folder: Path) -> None:
    require_disk(folder.parent, tool.disk_gb, f"building {tool.folder}")
    go = ensure_go()
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    env = build_environment(os.environ, cache_root())
    for program, package in tool.programs:
        with stage(f"building {program}"):
            run_visibly(
                [go, "build", "-C", str(TOOLS / tool.folder), *tool.flags, "-o", str(partial / program), package],
                env=env,
                log=cache_root() / "logs" / f"build-{program}.log",
            )
    partial.rename(folder)
