"""Which pod template to apply: a new one, or the one applied before.

An operator upgrade must roll no pod. So the Deployment carries, beside the template it was made with, a hash of what
the user wrote. While that hash is unchanged the old template is applied again, whatever the present code or its
settings would render; when it changes, the present code renders anew.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

from tidegate_contract import labels
from tidegate_operator.cluster import Manifest
from tidegate_operator.objects.pod_template import build_pod_template
from tidegate_operator.platform import Platform
from tidegate_operator.resource import InferenceService

# Parts of the spec that never reach a pod.
_NOT_IN_POD: Final = ("replicas", "autoscaling", "service", "podDisruptionBudget")


@dataclass(frozen=True, slots=True)
class Rendering:
    """A pod template and what is remembered with it."""

    template: Manifest
    template_hash: str
    renderer_version: str
    spec_hash: str
    is_outdated: bool  # the present code or settings would render something else

    @property
    def pod_template(self) -> Manifest:
        """For the Deployment: the template, and on it its hash, so that a pod shows what it was made from."""
        metadata = self.template["metadata"]
        annotations = metadata.get("annotations", {}) | {labels.TEMPLATE_HASH_ANNOTATION: self.template_hash}
        return self.template | {"metadata": metadata | {"annotations": annotations}}

    @property
    def annotations(self) -> dict[str, str]:
        """For the Deployment itself; on the template they would roll the pods whenever a renderer changes."""
        return {
            labels.TEMPLATE_HASH_ANNOTATION: self.template_hash,
            labels.RENDERER_VERSION_ANNOTATION: self.renderer_version,
            labels.SPEC_HASH_ANNOTATION: self.spec_hash,
            labels.POD_TEMPLATE_ANNOTATION: _canonical(self.template),
        }


def render(resource: InferenceService, platform: Platform, live: dict[str, str]) -> Rendering:
    """The rendering to apply, given the annotations that the live Deployment carries (none: there is no Deployment)."""
    template = build_pod_template(resource, platform)
    fresh = Rendering(
        template=template,
        template_hash=_hash(template),
        renderer_version=platform.renderer_version,
        spec_hash=spec_hash(resource),
        is_outdated=False,
    )
    kept = _kept(live, fresh.spec_hash)
    if kept is None:
        return fresh
    return Rendering(
        template=kept,
        template_hash=live[labels.TEMPLATE_HASH_ANNOTATION],
        renderer_version=live.get(labels.RENDERER_VERSION_ANNOTATION, "unknown"),
        spec_hash=fresh.spec_hash,
        is_outdated=live[labels.TEMPLATE_HASH_ANNOTATION] != fresh.template_hash,
    )


def spec_hash(resource: InferenceService) -> str:
    """Of what the user wrote about pods, and of the annotation by which they ask for a new rendering."""
    about_pods = {name: part for name, part in resource.raw_spec.items() if name not in _NOT_IN_POD}
    return _hash([about_pods, resource.annotations.get(labels.ROLL_ANNOTATION)])


def _kept(live: dict[str, str], present_spec_hash: str) -> Manifest | None:
    """The stored template, if it was made from this spec and nobody has tampered with it."""
    stored = live.get(labels.POD_TEMPLATE_ANNOTATION)
    if stored is None or live.get(labels.SPEC_HASH_ANNOTATION) != present_spec_hash:
        return None
    try:
        template: Manifest = json.loads(stored)
    except ValueError:
        return None
    return template if _hash(template) == live.get(labels.TEMPLATE_HASH_ANNOTATION) else None


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _hash(value: Any) -> str:
    return hashlib.sha256(_canonical(value).encode()).hexdigest()[:16]
