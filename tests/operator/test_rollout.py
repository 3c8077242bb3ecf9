"""How many pods may go at once: none that serves or may come to serve, and all that only fail."""

import pytest

from tests.operator.make import container, ended, pod, resource
from tidegate_operator.pods import Pod
from tidegate_operator.rollout import ALL, max_unavailable

OLD_FAILS = pod("old", ready=False, template_hash="old", container=container(last_exit=ended()))
OLD_LOADS = pod("old", ready=False, template_hash="old", container=container())
OLD_SERVES = pod("old", template_hash="old")
NEW_LOADS = pod("new", ready=False, template_hash="new", container=container())
NEW_WAITS = pod("new", ready=False, template_hash="new", unschedulable="0/1 nodes are available")
NEW_FAILS = pod("new", ready=False, template_hash="new", container=container(last_exit=ended()))
GONE = pod("gone", ready=False, template_hash="old", phase="Failed", end_reason="Evicted")


@pytest.mark.parametrize(
    ("pods", "allowed"),
    [
        pytest.param([], 0, id="no pods yet"),
        pytest.param([OLD_FAILS], ALL, id="only a failing pod of the older template"),
        pytest.param([OLD_FAILS, NEW_WAITS], ALL, id="one that holds the place of the new one"),
        pytest.param([OLD_FAILS, NEW_LOADS], ALL, id="one beside a new one that loads"),
        pytest.param([OLD_LOADS], 0, id="an old pod that still loads"),
        pytest.param([OLD_FAILS, OLD_LOADS], 0, id="one fails and one loads"),
        pytest.param([OLD_SERVES, OLD_FAILS], 0, id="one fails and one serves"),
        pytest.param([OLD_SERVES], 0, id="an old pod that serves"),
        pytest.param([NEW_FAILS], 0, id="the newest template fails: nothing to roll to"),
        pytest.param([GONE, NEW_LOADS], 0, id="an evicted pod is no pod"),
    ],
)
def test_max_unavailable(pods: list[Pod], allowed: int | str) -> None:
    assert max_unavailable(resource().spec, pods, "new") == allowed
