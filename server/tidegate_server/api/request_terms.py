"""Whose request it is and how long it may wait: what headers say, beside the body."""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from tidegate_server.errors import InvalidRequest

TIMEOUT_HEADER: Final = "x-request-timeout"
MAX_TIMEOUT_S: Final = 3600.0

NO_TENANT: Final = ""  # all requests that bring no key share one tenant


@dataclass(frozen=True, slots=True)
class TermsPolicy:
    """How a server reads the headers of all its requests."""

    tenant_header: str | None = None  # None: the key in `Authorization: Bearer`
    queue_timeout_s: float | None = None
    hash_key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)


@dataclass(frozen=True, slots=True)
class RequestTerms:
    """What holds for one API request, and for each of its choices in the engine."""

    tenant: str = NO_TENANT
    deadline_s: float | None = None  # CLOCK_MONOTONIC; nothing of it is begun after that


def request_terms(headers: Mapping[str, str], policy: TermsPolicy, now: float) -> RequestTerms:
    """The terms of a request that arrived at `now`.

    Args:
        headers: found by their names in any case.

    Raises:
        InvalidRequest: the timeout is no number of seconds within bounds.
    """
    limits_s = [limit_s for limit_s in (policy.queue_timeout_s, _timeout_s(headers)) if limit_s is not None]
    return RequestTerms(
        tenant=_tenant(headers, policy),
        deadline_s=now + min(limits_s) if limits_s else None,  # a client may be less patient than the server, not more
    )


def _tenant(headers: Mapping[str, str], policy: TermsPolicy) -> str:
    secret = _bearer_key(headers) if policy.tenant_header is None else headers.get(policy.tenant_header)
    if not secret:
        return NO_TENANT
    # Tenants reach the engine and its records; with a key of this process nobody finds the client's key from there.
    return blake2b(secret.encode(), key=policy.hash_key, digest_size=16).hexdigest()


def _bearer_key(headers: Mapping[str, str]) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def _timeout_s(headers: Mapping[str, str]) -> float | None:
    raw = headers.get(TIMEOUT_HEADER)
    if raw is None:
        return None
    try:
        timeout_s = float(raw)
    except ValueError:
        timeout_s = math.nan
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequest(
            f"{TIMEOUT_HEADER}: not a number of seconds above 0 and at most {MAX_TIMEOUT_S:.0f}",
            param=TIMEOUT_HEADER,
            code="invalid_value",
        )
    return timeout_s
