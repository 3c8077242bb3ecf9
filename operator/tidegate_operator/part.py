"""What every part of the custom resource is made of: a typed struct with CEL rules beside its fields."""

from dataclasses import dataclass
from typing import ClassVar

from msgspec import Struct


@dataclass(frozen=True, slots=True)
class Rule:
    """One CEL rule of the schema and what a user reads when it fails."""

    rule: str
    message: str


class Part(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of the resource; fields are camelCase on the wire, and what equals its default is left out."""

    RULES: ClassVar[tuple[Rule, ...]] = ()
