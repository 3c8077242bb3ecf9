"""Which errors mean that a request was not admitted, and by which name they are counted."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tidegate_contract import metric_names as names
from tidegate_server.errors import RequestError

# By the error's code. What is wrong with a request in itself (its JSON, its fields, its model) is not among them.
_REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "context_length_exceeded": names.NEVER_FITS,
        "queue_full": names.QUEUE_FULL,
        "deadline_exceeded": names.DEADLINE,
        "starting": names.STARTING,
        "draining": names.DRAINING,
        "engine_failed": names.FAILED,
    }
)


def refusal_reason(error: RequestError) -> str | None:
    """One of the contract's REFUSAL_REASONS; None when admission has nothing to do with the error."""
    return None if error.code is None else _REASONS.get(error.code)
