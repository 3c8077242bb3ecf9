"""When a pod template is rendered anew, and when the old one is kept."""

from dataclasses import replace
from typing import Any

import pytest

from tests.operator.make import PLATFORM, resource
from tidegate_contract import labels
from tidegate_operator.objects.rendering import render
from tidegate_operator.resource import InferenceService

NEWER = replace(PLATFORM, server_image="tidegate/server:2", renderer_version="2")


def stored(subject: InferenceService) -> dict[str, str]:
    return render(subject, PLATFORM, {}).annotations


def test_same_spec_keeps_the_old_renderers_template_byte_for_byte() -> None:
    kept = render(resource(), NEWER, stored(resource()))
    assert kept.annotations == stored(resource())
    assert kept.is_outdated


def test_same_renderer_is_not_outdated() -> None:
    assert not render(resource(), PLATFORM, stored(resource())).is_outdated


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {"maxNumSeqs": 2}},
        {"resources": {"memory": "1Gi"}},
        {"drain": {"timeoutSeconds": 1}},
        {"podTemplate": {"labels": {"a": "b"}}},
        {"image": "other"},
    ],
    ids=str,
)
def test_changed_spec_is_rendered_by_the_present_renderer(spec: dict[str, Any]) -> None:
    fresh = render(resource(**spec), NEWER, stored(resource()))
    assert fresh.renderer_version == "2"
    assert fresh.template_hash != stored(resource())[labels.TEMPLATE_HASH_ANNOTATION]


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 5},
        {"autoscaling": {"maxReplicas": 2}},
        {"service": {"port": 81}},
        {"podDisruptionBudget": {"enabled": False}},
    ],
    ids=str,
)
def test_what_reaches_no_pod_rolls_no_pod(spec: dict[str, Any]) -> None:
    assert render(resource(**spec), NEWER, stored(resource())).annotations == stored(resource())


def test_asking_for_it_renders_anew() -> None:
    asked = replace(resource(), annotations={labels.ROLL_ANNOTATION: "1"})
    fresh = render(asked, NEWER, stored(resource()))
    assert fresh.renderer_version == "2"
    assert not render(asked, NEWER, fresh.annotations).is_outdated


@pytest.mark.parametrize("damage", ["{", "{}", None], ids=["no JSON", "another template", "gone"])
def test_damaged_memory_is_rendered_anew(damage: str | None) -> None:
    live = stored(resource())
    live.pop(labels.POD_TEMPLATE_ANNOTATION)
    if damage is not None:
        live[labels.POD_TEMPLATE_ANNOTATION] = damage
    assert render(resource(), NEWER, live).renderer_version == "2"
