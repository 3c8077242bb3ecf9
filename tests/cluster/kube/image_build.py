"""The product's two images, built from the Dockerfile at the root of the repository."""

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.kube import packages
from tests.cluster.kube.base_image import ensure_base_image
from tests.cluster.kube.buildah import Buildah
from tests.cluster.kube.console import stage
from tests.cluster.kube.errors import ClusterError
from tests.cluster.kube.lock import exclusive
from tests.cluster.kube.paths import REPOSITORY, cache_root, require_disk

TARGETS = ("operator", "server")
_BUILD_GB = {"operator": 0.7, "server": 8.0}  # the unpacked layers in the build store


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image in the build store; its name stays while `id` changes with the content."""

    target: str
    name: str
    id: str


def image_name(target: str) -> str:
    """The full name; in a pod it may be written `tidegate/server:dev`."""
    return f"docker.io/tidegate/{target}:dev"


def image_store() -> Buildah:
    return Buildah(cache_root() / "buildah")


def missing_gb(target: str) -> float:
    """What building an image takes of the disk, next to nothing where only our own code has changed."""
    return 0 if image_store().has_image(image_name(target)) else _BUILD_GB[target]


def build(targets: Sequence[str]) -> list[BuiltImage]:
    """Build images; with nothing changed it takes seconds."""
    if os.geteuid() != 0:
        raise ClusterError("building images needs root: run as root")
    packages.ensure(packages.FOR_IMAGES)
    buildah = image_store()
    tags = {target: image_name(target) for target in targets}
    with exclusive(cache_root() / "buildah.lock", "building images"):
        require_disk(cache_root(), sum(missing_gb(target) for target in targets), f"building {', '.join(targets)}")
        ensure_base_image(buildah)
        # The stage that makes our wheel gets a name too, or pruning would take it for waste.
        for target, tag in {"wheel": "localhost/tidegate-wheel:dev", **tags}.items():
            with stage(f"building {tag}"):
                log = cache_root() / "logs" / f"image-{target}.log"
                buildah.build(REPOSITORY, target, tag, host_certificates(), log)
        buildah.prune()
        return [BuiltImage(target, tag, buildah.image_id(tag)) for target, tag in tags.items()]


def host_certificates() -> Path | None:
    """This host's certificate authorities: behind a proxy that re-signs, downloads in the build must trust it too."""
    found = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    return Path(found) if found and Path(found).exists() else None
