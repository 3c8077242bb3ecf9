"""Everything the operator can be told: flags of `tidegate-operator run`, each also an environment variable."""

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from tidegate_contract.labels import OPS_PORT
from tidegate_operator.errors import InvalidSetting
from tidegate_operator.platform import Platform
from tidegate_operator.resource import PullPolicy

ENVIRONMENT_PREFIX: Final = "TIDEGATE_OPERATOR_"
NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """The whole of `tidegate-operator run`."""

    server_image: str
    """Image of the pods, unless a resource names its own."""
    server_image_pull_policy: PullPolicy
    namespaces: tuple[str, ...]
    """Namespaces to serve; empty means all of the cluster."""
    lease_name: str
    lease_namespace: str
    """The operator's own namespace."""
    identity: str
    """This replica's name in the lease and in Events: its pod's."""
    cluster_domain: str
    ops_port: int
    """Port of probes and metrics; 0 picks a free one."""
    workers: int
    """Resources looked at side by side."""
    log_format: str
    """`text` or `json`."""
    log_level: str

    @property
    def platform(self) -> Platform:
        return Platform(
            server_image=self.server_image,
            server_image_pull_policy=self.server_image_pull_policy,
            renderer_version=version(),
            cluster_domain=self.cluster_domain,
        )


def version() -> str:
    """Of the installed distribution."""
    return metadata.version("tidegate")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags without defaults of their own, so that an absent flag leaves the word to the environment."""
    add = parser.add_argument
    add("--server-image", help="image of the pods (required)")
    add("--server-image-pull-policy", help="Always, IfNotPresent (default) or Never")
    add("--namespaces", help="comma-separated, to serve; default: the whole cluster")
    add("--lease-name", help="default: tidegate-operator")
    add("--lease-namespace", help="default: the operator's own")
    add("--identity", help="this replica's name in the lease; default: the host name")
    add("--cluster-domain", help="default: cluster.local")
    add("--ops-port", help=f"port of probes and metrics; default: {OPS_PORT}")
    add("--workers", help="resources looked at side by side; default: 4")
    add("--log-format", help="text (default) or json")
    add("--log-level", help="debug, info (default), warning or error")


def read_settings(flags: Mapping[str, str | None], environment: Mapping[str, str] | None = None) -> OperatorSettings:
    """Settings from parsed flags, then the environment, then defaults.

    Raises:
        InvalidSetting: a value is wrong or missing; names the flag and its variable.
    """
    source = _Source(flags, os.environ if environment is None else environment)
    return OperatorSettings(
        server_image=source.text("server_image"),
        server_image_pull_policy=PullPolicy(
            source.choice("server_image_pull_policy", "IfNotPresent", [policy.value for policy in PullPolicy])
        ),
        namespaces=source.names("namespaces"),
        lease_name=source.text("lease_name", "tidegate-operator"),
        lease_namespace=source.text("lease_namespace", _own_namespace()),
        identity=source.text("identity", socket.gethostname()),
        cluster_domain=source.text("cluster_domain", "cluster.local"),
        ops_port=source.number("ops_port", OPS_PORT, 0, 65_535),
        workers=source.number("workers", 4, 1, 64),
        log_format=source.choice("log_format", "text", ["text", "json"]),
        log_level=source.choice("log_level", "info", ["debug", "info", "warning", "error"]),
    )


@dataclass(frozen=True, slots=True)
class _Source:
    flags: Mapping[str, str | None]
    environment: Mapping[str, str]

    def text(self, name: str, default: str | None = None) -> str:
        given = self.flags.get(name) or self.environment.get(_variable(name)) or default
        if not given:
            raise InvalidSetting(_both(name), "is required")
        return given

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        given = self.text(name, default)
        if given not in choices:
            raise InvalidSetting(_both(name), f"{given!r} is not one of {', '.join(choices)}")
        return given

    def number(self, name: str, default: int, low: int, high: int) -> int:
        given = self.text(name, str(default))
        if not given.isdecimal() or not low <= int(given) <= high:
            raise InvalidSetting(_both(name), f"{given!r} is not a whole number from {low} to {high}")
        return int(given)

    def names(self, name: str) -> tuple[str, ...]:
        given = self.flags.get(name) or self.environment.get(_variable(name)) or ""
        return tuple(part.strip() for part in given.split(",") if part.strip())


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _both(name: str) -> str:
    return f"--{name.replace('_', '-')} ({_variable(name)})"


def _own_namespace() -> str:
    try:
        return NAMESPACE_FILE.read_text().strip()
    except OSError:
        return "default"  # outside a cluster
