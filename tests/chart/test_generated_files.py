"""Files that `make generate` writes are what it would write now, and the examples can be read."""

from pathlib import Path

import pytest
import yaml

from tests.chart.conftest import REPOSITORY
from tidegate_contract.labels import KIND
from tidegate_operator.crd import crd_yaml
from tidegate_operator.resource import decode_resource
from tools.generate import CRD, INSTALL, install_yaml

EXAMPLES = sorted((REPOSITORY / "manifests" / "examples").glob("*.yaml"))


def test_definition_in_the_chart_is_up_to_date() -> None:
    assert CRD.read_text() == crd_yaml(), "run `make generate`"


def test_plain_manifests_are_up_to_date(helm: Path) -> None:
    assert INSTALL.read_text() == install_yaml(helm), "run `make generate`"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_operator_reads_the_examples(example: Path) -> None:
    resources = [o for o in yaml.safe_load_all(example.read_text()) if o["kind"] == KIND]
    assert resources
    for resource in resources:
        identity = {"namespace": "default", "uid": "0"}
        decode_resource({**resource, "metadata": {**resource["metadata"], **identity}})
