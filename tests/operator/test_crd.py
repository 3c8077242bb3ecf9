"""The generated CustomResourceDefinition: structural, described, and true to the types."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tidegate_operator.__main__ import main
from tidegate_operator.cluster import Manifest
from tidegate_operator.crd import crd_yaml, custom_resource_definition

CHART_COPY = Path(__file__).parents[2] / "charts" / "tidegate" / "files" / "inferenceservices-crd.yaml"


def schema() -> Manifest:
    (version,) = custom_resource_definition()["spec"]["versions"]
    found: Manifest = version["schema"]["openAPIV3Schema"]
    return found


def walk(node: Manifest, path: str = "") -> Iterator[tuple[str, Manifest]]:
    yield path, node
    for name, inner in (node.get("properties") or {}).items():
        yield from walk(inner, f"{path}.{name}")
    if isinstance(node.get("items"), dict):
        yield from walk(node["items"], f"{path}[]")


def test_every_field_of_spec_and_status_is_described() -> None:
    for part in ("spec", "status"):
        undescribed = [
            path
            for path, node in walk(schema()["properties"][part], part)
            if "description" not in node and not path.endswith("[]")
        ]
        assert undescribed == []


def test_every_rule_has_a_message() -> None:
    rules = [rule for _, node in walk(schema()) for rule in node.get("x-kubernetes-validations", [])]
    assert len(rules) >= 10
    assert all(rule["message"] for rule in rules)


def test_schema_sets_no_defaults() -> None:
    """A default that a later version changes would change stored objects, and roll their pods."""
    assert [path for path, node in walk(schema()) if "default" in node] == []


def test_strings_and_lists_of_the_spec_are_bounded_so_that_rules_stay_cheap() -> None:
    for path, node in walk(schema()["properties"]["spec"], "spec"):
        if node.get("type") == "string" and "enum" not in node:
            assert "maxLength" in node, path
        if node.get("type") == "array":
            assert "maxItems" in node, path


def test_the_chart_holds_what_the_command_prints() -> None:
    assert yaml.safe_load(crd_yaml()) == custom_resource_definition()
    assert CHART_COPY.read_text() == crd_yaml()


def test_crd_command_needs_no_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crd"]) == 0
    assert capsys.readouterr().out == crd_yaml()
