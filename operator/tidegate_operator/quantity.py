"""Kubernetes quantities, such as 500m or 1.5Gi: as a field of the resource, as a rule of its schema, as a number."""

from decimal import Decimal
from typing import Annotated

from kubernetes.utils import parse_quantity
from msgspec import Meta

from tidegate_operator.part import Rule

Quantity = int | Annotated[str, Meta(max_length=64)]
"""A whole number or text. YAML's unquoted fractions are neither: a schema has no type for all three."""


def above_zero(path: str, examples: str) -> Rule:
    """The rule for a field, given as users know it, beside the part that holds it: the schema alone takes any text."""
    field = f"self.{path.rpartition('.')[2]}"
    is_quantity = f"isQuantity({field}) && quantity({field}).isGreaterThan(quantity('0'))"
    return Rule(
        f"!has({field}) || (type({field}) == string ? {is_quantity} : {field} > 0)",
        f"{path} must be a Kubernetes quantity above zero, such as {examples}",
    )


def number(quantity: Quantity) -> Decimal:
    """In the quantity's own unit: cores, or bytes."""
    parsed: Decimal = parse_quantity(quantity)
    return parsed
