"""What the operator can be told, and what it says to a wrong value."""

import argparse

import pytest

from tidegate_contract.labels import OPS_PORT
from tidegate_operator.__main__ import main
from tidegate_operator.errors import InvalidSetting
from tidegate_operator.resource import PullPolicy
from tidegate_operator.settings import add_flags, read_settings

IMAGE = {"TIDEGATE_OPERATOR_SERVER_IMAGE": "tidegate/server:1"}


def test_image_alone_is_enough() -> None:
    settings = read_settings({}, IMAGE)
    assert settings.server_image == "tidegate/server:1"
    assert settings.server_image_pull_policy is PullPolicy.IF_NOT_PRESENT
    assert settings.namespaces == ()
    assert settings.ops_port == OPS_PORT
    assert settings.platform.server_image == "tidegate/server:1"


def test_flag_wins_over_the_environment() -> None:
    assert read_settings({"server_image": "other"}, IMAGE).server_image == "other"


def test_namespaces_are_a_list() -> None:
    settings = read_settings({}, IMAGE | {"TIDEGATE_OPERATOR_NAMESPACES": "a, b,"})
    assert settings.namespaces == ("a", "b")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SERVER_IMAGE_PULL_POLICY", "Sometimes"),
        ("OPS_PORT", "70000"),
        ("WORKERS", "none"),
        ("LOG_FORMAT", "xml"),
        ("SERVER_IMAGE", ""),
    ],
)
def test_wrong_value_names_the_flag_and_the_variable(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        read_settings({}, IMAGE | {f"TIDEGATE_OPERATOR_{name}": value})
    assert f"TIDEGATE_OPERATOR_{name}" in str(caught.value)
    assert f"--{name.lower().replace('_', '-')}" in str(caught.value)


def test_wrong_value_stops_the_start_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--server-image", "x", "--workers", "many"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "--workers" in line


def test_every_setting_is_a_flag() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    given = dict.fromkeys(vars(parser.parse_args([])), "1") | {
        "server_image_pull_policy": "Never",
        "log_format": "json",
        "log_level": "debug",
    }
    settings = read_settings(given, {})
    assert settings.__slots__ is not None
    assert set(given) == set(type(settings).__dataclass_fields__)
