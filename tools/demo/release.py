"""The demo's release of the chart, marked as its own: nobody else's is ever changed or removed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate_contract.labels import GROUP, PLURAL
from tools.demo.access import Access
from tools.demo.images import Image
from tools.demo.namespaces import ensure_namespace
from tools.demo.stages import REPOSITORY, read

RELEASE = "tidegate"
NAMESPACE = "tidegate-system"
CHART = REPOSITORY / "charts" / "tidegate"
DEFINITION = f"{PLURAL}.{GROUP}"

# Annotations of the operator's pods. Helm keeps them with the release's values, even of an install that failed.
MADE_BY = f"{GROUP}/made-by"
DEMO = "make-demo"
IMAGE_ID = f"{GROUP}/image-id"  # rolls the operator when its image has new content under the same tag


@dataclass(frozen=True, slots=True)
class Installed:
    """What a cluster holds of Tidegate."""

    has_definition: bool
    status: str | None  # of our release, in helm's words; None: there is no such release
    values: Mapping[str, Any] = field(default_factory=dict)  # those that its last install or upgrade was given

    @property
    def is_from_demo(self) -> bool:
        annotations = self.values.get("operator", {}).get("podAnnotations", {})
        return bool(annotations.get(MADE_BY) == DEMO)

    @property
    def is_from_others(self) -> bool:
        return not self.is_from_demo and (self.has_definition or self.status is not None)

    @property
    def was_interrupted(self) -> bool:
        """Whether helm refuses to upgrade it, because it believes that it is still at work on it."""
        return self.status not in (None, "deployed", "failed")


def chart_values(images: Sequence[Image]) -> dict[str, Any]:
    """What helm is given: where the images are, and the mark."""
    values: dict[str, Any] = {
        image.component: {"image": {"repository": image.repository, "tag": image.tag}} for image in images
    }
    operator = next(image for image in images if image.component == "operator")
    values["operator"]["podAnnotations"] = {MADE_BY: DEMO, IMAGE_ID: operator.id}
    return values


def find_installed(access: Access) -> Installed:
    definition = access.get("get", "crd", DEFINITION, "--ignore-not-found", "--output=name")
    where = ["--namespace", NAMESPACE, "--output=json"]
    releases = json.loads(read([*access.helm, "list", "--all", "--filter", f"^{RELEASE}$", *where]))
    if not releases:
        return Installed(bool(definition.strip()), None)
    values = json.loads(read([*access.helm, "get", "values", RELEASE, *where]))
    return Installed(bool(definition.strip()), releases[0]["status"], values or {})


def install(access: Access, images: Sequence[Image]) -> None:
    """Install the chart, or upgrade the release to these images, and wait for the operator."""
    if find_installed(access).was_interrupted:
        uninstall(access)
    ensure_namespace(access, NAMESPACE)
    how = ["--namespace", NAMESPACE, "--values", "-", "--wait"]
    read([*access.helm, "upgrade", "--install", RELEASE, CHART, *how], stdin=json.dumps(chart_values(images)))


def uninstall(access: Access) -> str:
    """Remove the release, with it the definition and every InferenceService; gives what helm says."""
    return read([*access.helm, "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait"])
