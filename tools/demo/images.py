"""Builds the two images and brings them to the demo's cluster."""

import shutil
from dataclasses import dataclass

from tools.demo.stages import StageFailed, follow
from tools.demo.target import ImageRoute, Target

TAG = "dev"
COMPONENTS = ("operator", "server")


@dataclass(frozen=True, slots=True)
class Image:
    component: str  # also the target in the Dockerfile
    repository: str

    @property
    def reference(self) -> str:
        return f"{self.repository}:{TAG}"


def images_for(target: Target) -> tuple[Image, ...]:
    """The images under the names that the cluster's nodes will know them by."""
    prefix = f"{target.registry}/tidegate-" if target.route is ImageRoute.REGISTRY else "tidegate/"
    return tuple(Image(component, f"{prefix}{component}") for component in COMPONENTS)


def build_and_load(target: Target, images: tuple[Image, ...]) -> None:
    """Build with docker or podman, then load or push as the target's route says.

    Raises:
        StageFailed: no builder, or a command failed.
    """
    builder = next((name for name in ("docker", "podman") if shutil.which(name)), None)
    if builder is None:
        raise StageFailed(
            "neither docker nor podman is installed; one of them builds the images for a cluster of yours"
        )
    for image in images:
        follow([builder, "build", "--target", image.component, "--tag", image.reference, "."])
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
