"""Finds out where to run: asks the environment, kubectl and the person, and leaves the decision to `target`."""

import os
import sys
from pathlib import Path

from tests.cluster.kube.paths import cache_root, own_cluster
from tools.demo import record
from tools.demo.access import current_context, known_contexts, require_tools
from tools.demo.stages import say
from tools.demo.target import LOCAL, Target, choose_target, targets_to_clean


def find_target() -> Target:
    """The cluster for the demo.

    Raises:
        NoTarget, StageFailed: none can be used; says what to set or to install.
    """
    wanted, own = _wanted_context(), _own_cluster()
    if wanted not in ("", LOCAL, own):
        require_tools("kubectl", "helm")
    current = None if wanted or own else current_context()
    return choose_target(
        wanted=wanted,
        own=own,
        known=known_contexts(),
        current=current,
        confirmed=current is not None and _agrees(current),
        registry=os.environ.get("DEMO_REGISTRY", ""),
    )


def find_targets_to_clean() -> tuple[Target, ...]:
    """The clusters to remove the demo from.

    Raises:
        NoTarget: DEMO_CONTEXT names no context of kubectl's.
    """
    return targets_to_clean(
        wanted=_wanted_context(),
        own=_own_cluster(),
        known=known_contexts(),
        remembered=record.remembered(record_file()),
    )


def record_file() -> Path:
    return cache_root() / "demos.json"


def _agrees(context: str) -> bool:
    """Whether a person at the terminal agrees to use this cluster; nobody there means no."""
    if not sys.stdin.isatty():
        say(f"kubectl points at {context!r}; nobody is here to agree to use it, so a cluster is started here instead.")
        say(f"(DEMO_CONTEXT={context} uses it.)")
        return False
    answer = input(f"Use the cluster {context!r} that kubectl points at? No starts one here. [y/N] ")
    return answer.strip().lower() in {"y", "yes"}


def _wanted_context() -> str:
    return os.environ.get("DEMO_CONTEXT", "")


def _own_cluster() -> str | None:
    return own_cluster(os.environ.get("KUBECONFIG", ""), cache_root())
