"""One moment of the cluster as a reconcile sees it: frozen, typed, complete."""

from dataclasses import dataclass

from tidegate_operator.cluster import Kind, ObjectRef
from tidegate_operator.demand import Sample
from tidegate_operator.deployments import Deployment
from tidegate_operator.pods import Pod


@dataclass(frozen=True, slots=True)
class Foreign:
    """An object that carries a child's name but is not ours: never touched."""

    ref: ObjectRef
    owner: str  # for the message: who it belongs to
    is_leaving: bool = False  # it goes by itself


@dataclass(frozen=True, slots=True)
class Observed:
    deployment: Deployment | None = None
    pods: tuple[Pod, ...] = ()
    children: tuple[ObjectRef, ...] = ()  # ours and there, each with its uid
    foreign: tuple[Foreign, ...] = ()
    samples: tuple[Sample, ...] = ()  # of the last minutes, oldest first

    def uid_of(self, kind: Kind) -> str | None:
        return next((ref.uid for ref in self.children if ref.kind == kind), None)
