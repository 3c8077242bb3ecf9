"""Remembers which clusters hold a demo, so that `make demo-clean` finds them without being told."""

import json
from pathlib import Path

from tools.demo.target import ImageRoute, Target


def remembered(file: Path) -> tuple[Target, ...]:
    """The clusters that `make demo` has touched and `make demo-clean` has not, in that order."""
    if not file.exists():
        return ()
    return tuple(
        Target(context=entry["context"], route=ImageRoute(entry["route"]), cluster_name=entry["cluster_name"])
        for entry in json.loads(file.read_text(encoding="utf-8"))
    )


def remember(file: Path, target: Target) -> None:
    _write(file, [*_others(file, target), target])


def forget(file: Path, target: Target) -> None:
    _write(file, _others(file, target))


def _others(file: Path, target: Target) -> list[Target]:
    """All but the cluster of `target`: a user's is known by its context, one of tests/cluster by its name."""

    def is_same(other: Target) -> bool:
        return other.context == target.context and (not target.is_local or other.cluster_name == target.cluster_name)

    return [other for other in remembered(file) if not is_same(other)]


def _write(file: Path, targets: list[Target]) -> None:
    entries = [
        {"context": target.context, "route": target.route.value, "cluster_name": target.cluster_name}
        for target in targets
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
