"""The cluster's programs, built from Go modules at the versions that `tools/*/go.mod` pins."""

import hashlib
import os
import shutil
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
    """

    folder: str
    programs: tuple[tuple[str, str], ...]
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
    f"-X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}",
)
ETCD = Tool("etcd", (("etcd", "go.etcd.io/etcd/server/v3"),))
COREDNS = Tool("coredns", (("coredns", "github.com/coredns/coredns"),))
HELM = Tool("helm", (("helm", "helm.sh/helm/v3/cmd/helm"),))
PAUSE = Tool("pause", (("pause", "."),))

FOR_CONTROL_PLANE = (KUBERNETES, ETCD, HELM)
FOR_NODES = (*FOR_CONTROL_PLANE, COREDNS, PAUSE)


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
    root = cache_root() / "bin"
    wanted = {tool: root / tool_key(tool, TOOLS / tool.folder) for tool in tools}
    if not all(folder.exists() for folder in wanted.values()):
        with exclusive(root / ".lock", "building the cluster's programs"):
            for tool, folder in wanted.items():
                if not folder.exists():
                    _build(tool, folder)
    return Binaries(tuple(wanted.values()))


def _build(tool: Tool, folder: Path) -> None:
    require_disk(folder.parent, 2 if tool is not KUBERNETES else 9, f"building {tool.folder}")
    go = ensure_go()
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    env = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
    for program, package in tool.programs:
        with stage(f"building {program}"):
            run_visibly(
                [go, "build", "-C", str(TOOLS / tool.folder), *tool.flags, "-o", str(partial / program), package],
                env=env,
                log=cache_root() / "logs" / f"build-{program}.log",
            )
    partial.rename(folder)
