"""Builds the two images and brings them to the demo's cluster."""

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.demo.access import cluster_command, require_tools
from tools.demo.stages import StageFailed, follow, read
from tools.demo.target import ImageRoute, Target

COMPONENTS = ("operator", "server")


@dataclass(frozen=True, slots=True)
class Image:
    """A built image under the name that the cluster's nodes know it by."""

    component: str  # also the target in the Dockerfile
    repository: str
    tag: str
    id: str  # changes with the content

    @property
    def reference(self) -> str:
        return f"{self.repository}:{self.tag}"


def image_from_id(component: str, registry: str, image_id: str) -> Image:
    """Tagged by its content: nodes that have an older image under another tag do not mistake it for this one."""
    prefix = f"{registry}/tidegate-" if registry else "tidegate/"
    return Image(component, f"{prefix}{component}", f"dev-{image_id.removeprefix('sha256:')[:12]}", image_id)


def require_builder(target: Target) -> str:
    """The program that builds images for a cluster of the user's.

    Raises:
        StageFailed: none of them works, or the program that loads images is missing.
    """
    match target.route:
        case ImageRoute.KIND | ImageRoute.K3D | ImageRoute.MINIKUBE:
            require_tools(target.route.value)
        case ImageRoute.REGISTRY | ImageRoute.TEST_CLUSTER:
            pass
    for builder in ("docker", "podman"):
        if shutil.which(builder) is not None and subprocess.run([builder, "info"], capture_output=True).returncode == 0:
            return builder
    raise StageFailed(
        "neither `docker info` nor `podman info` succeeds; a cluster of yours needs one to build the images"
    )


def build_in_test_cluster(target: Target) -> tuple[Image, ...]:
    """Build with the programs of tests/cluster."""
    built = json.loads(read(cluster_command("build-images", target, "--json"), shows_progress=True))
    named = ((one, *one["name"].rsplit(":", 1)) for one in built)
    return tuple(Image(one["target"], repository, tag, one["id"]) for one, repository, tag in named)


def build_and_bring(target: Target) -> tuple[Image, ...]:
    """Build with docker or podman, then load or push as the target's route says.

    Raises:
        StageFailed: no builder, or a command failed.
    """
    builder = require_builder(target)
    images = tuple(_build(builder, component, target.registry) for component in COMPONENTS)
    references = [image.reference for image in images]
    match target.route:
        case ImageRoute.REGISTRY:
            for reference in references:
                follow([builder, "push", reference])
        case ImageRoute.KIND:
            follow(["kind", "load", "docker-image", "--name", target.cluster_name, *references])
        case ImageRoute.K3D:
            follow(["k3d", "image", "import", "--cluster", target.cluster_name, *references])
        case ImageRoute.MINIKUBE:
            for reference in references:
                follow(["minikube", "image", "load", reference])
        case ImageRoute.TEST_CLUSTER:
            raise AssertionError("tests/cluster builds and loads its own images")
    return images


def _build(builder: str, component: str, registry: str) -> Image:
    with tempfile.TemporaryDirectory() as folder:
        id_file = Path(folder) / "id"
        follow([builder, "build", "--target", component, "--iidfile", id_file, "."])
        image = image_from_id(component, registry, id_file.read_text(encoding="utf-8").strip())
    read([builder, "tag", image.id, image.reference])
    return image
