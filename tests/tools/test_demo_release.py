"""The demo changes and removes nothing but its own, and a run after a change of code shows the new code."""

import pytest

from tools.demo.images import Image, image_from_id
from tools.demo.inference_service import others_among
from tools.demo.release import Installed, chart_values

OPERATOR = Image("operator", "docker.io/tidegate/operator", "dev", "sha256:1111")
SERVER = Image("server", "docker.io/tidegate/server", "dev", "sha256:2222")
BY_DEMO = chart_values([OPERATOR, SERVER])
BY_OTHERS = {"crds": {"keep": True}, "operator": {"podAnnotations": {"team": "platform"}}}


@pytest.mark.parametrize(
    ("installed", "from_demo", "from_others"),
    [
        pytest.param(Installed(False, None), False, False, id="an empty cluster is nobody's"),
        pytest.param(Installed(True, "deployed", BY_DEMO), True, False, id="the mark makes it the demo's"),
        pytest.param(Installed(False, "failed", BY_DEMO), True, False, id="even if its install failed"),
        pytest.param(Installed(True, "deployed", BY_OTHERS), False, True, id="other values make it somebody else's"),
        pytest.param(Installed(True, "deployed"), False, True, id="no values too"),
        pytest.param(Installed(True, None), False, True, id="a definition without our release came another way"),
    ],
)
def test_only_a_marked_release_is_the_demos(installed: Installed, from_demo: bool, from_others: bool) -> None:
    assert installed.is_from_demo == from_demo
    assert installed.is_from_others == from_others


@pytest.mark.parametrize(
    ("status", "interrupted"),
    [(None, False), ("deployed", False), ("failed", False), ("pending-install", True), ("uninstalling", True)],
)
def test_release_that_helm_takes_for_unfinished_is_recognised(status: str | None, interrupted: bool) -> None:
    assert Installed(True, status).was_interrupted == interrupted


def test_operator_rolls_exactly_when_its_image_has_changed() -> None:
    rebuilt = Image("operator", OPERATOR.repository, OPERATOR.tag, "sha256:3333")
    assert chart_values([OPERATOR, SERVER]) == BY_DEMO
    assert chart_values([rebuilt, SERVER])["operator"] != BY_DEMO["operator"]


def test_pushed_image_is_named_by_its_content() -> None:
    image = image_from_id("server", "example.test/me", "sha256:0123456789abcdef")
    assert image.reference == "example.test/me/tidegate-server:dev-0123456789ab"
    assert image_from_id("server", "", "0123456789abcdef").reference == "tidegate/server:dev-0123456789ab"


def test_resources_of_others_are_seen() -> None:
    assert others_among([("tidegate-demo", "smollm2"), ("tidegate-demo", "mine"), ("prod", "smollm2")]) == (
        "tidegate-demo/mine",
        "prod/smollm2",
    )
