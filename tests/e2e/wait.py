"""Waits for a claim about the cluster to become true, and says what was still wrong when it did not."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
POLL_INTERVAL_S = 0.5


class NotYet(Exception):
    """Raised by a check whose claim does not hold yet; the text says what is missing."""


def eventually(check: Callable[[], T], *, within_s: float) -> T:
    """Call `check` until it returns, and give back what it returned.

    Raises:
        AssertionError: it still raised `NotYet` after `within_s`; carries the last reason.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            return check()
        except NotYet as reason:
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within_s:g} s: {reason}") from None
        time.sleep(POLL_INTERVAL_S)
