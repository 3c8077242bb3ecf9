"""A stand-in for `debian:bookworm-slim`, made from Debian's own packages: no registry is needed."""

import tempfile
from pathlib import Path

from tests.cluster.kube.buildah import Buildah
from tests.cluster.kube.console import stage
from tests.cluster.kube.paths import cache_root
from tests.cluster.kube.shell import run_visibly

BASE_IMAGE = "docker.io/library/debian:bookworm-slim"
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")


def ensure_base_image(buildah: Buildah) -> None:
    """Make the base image unless the store has it, from here or from a registry."""
    if buildah.has_image(BASE_IMAGE):
        return
    with stage(f"making {BASE_IMAGE} from Debian packages"), tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root.tar"
        options = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
        run_visibly(
            ["mmdebstrap", "--variant=minbase", "--format=tar", *options, "bookworm", str(root)],
            log=cache_root() / "logs" / "mmdebstrap.log",
        )
        buildah.commit_root(root, BASE_IMAGE)
