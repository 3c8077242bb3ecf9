"""What a cluster is to look like, and every address that follows from it."""

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.kube.errors import ClusterError

MAX_NODES = 4
MAX_SLOT = 3
DEFAULT_NAME = "tidegate"
DEFAULT_CONTROL_PLANE_NAME = "tidegate-cp"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,28}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """One cluster; clusters that run at once differ in name and in slot.

    Attributes:
        slot: which set of subnets and which bridge; a control plane alone uses none.
        nodes: 0 means only etcd and the control plane, on loopback.
        api_port: on loopback for a control plane alone, else in its own network namespace.
        etcd_port, etcd_peer_port: always on the loopback of where the control plane runs.
    """

    name: str
    slot: int = 0
    nodes: int = 1
    api_port: int = 6443
    etcd_port: int = 2379
    etcd_peer_port: int = 2380

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ClusterError(f"--name {self.name!r}: use up to 30 lower-case letters, digits and dashes")
        if not 0 <= self.slot <= MAX_SLOT:
            raise ClusterError(f"--slot {self.slot}: use 0 to {MAX_SLOT}")
        if not 0 <= self.nodes <= MAX_NODES:
            raise ClusterError(f"--nodes {self.nodes}: use 1 to {MAX_NODES}")

    @property
    def control_plane_only(self) -> bool:
        return self.nodes == 0

    @property
    def node_indexes(self) -> range:
        return range(1, self.nodes + 1)

    @property
    def bridge(self) -> str:
        return f"tgbr{self.slot}"

    @property
    def machine_subnet(self) -> str:
        return f"172.30.{250 - self.slot}.0/24"

    @property
    def host_address(self) -> str:
        return f"172.30.{250 - self.slot}.1"

    @property
    def control_plane_address(self) -> str:
        return "127.0.0.1" if self.control_plane_only else f"172.30.{250 - self.slot}.2"

    @property
    def api_url(self) -> str:
        return f"https://{self.control_plane_address}:{self.api_port}"

    @property
    def pod_cidr(self) -> str:
        return f"10.{244 + self.slot}.0.0/16"

    @property
    def service_cidr(self) -> str:
        return f"10.{96 + self.slot}.0.0/16"

    @property
    def kubernetes_service_address(self) -> str:
        return f"10.{96 + self.slot}.0.1"

    def node_name(self, index: int) -> str:
        return f"node{index}"

    def node_address(self, index: int) -> str:
        return f"172.30.{250 - self.slot}.{10 + index}"

    def node_pod_cidr(self, index: int) -> str:
        return f"10.{244 + self.slot}.{index}.0/24"

    def netns(self, machine: str) -> str:
        """The name of a machine's network namespace; machines are `control-plane` and the nodes."""
        return f"{self.name}-{machine}"

    def cgroup(self, index: int) -> str:
        return f"{self.name}-node{index}"

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "ClusterSpec | None":
        """The spec that a cluster was started with; None where there is no cluster."""
        if not path.exists():
            return None
        return cls(**json.loads(path.read_text(encoding="utf-8")))
