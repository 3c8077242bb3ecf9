"""Which waiting requests have waited too long."""

from bisect import bisect_left, insort

from tidegate_server.engine.request import Request


class Deadlines:
    """The requests that were never begun and have a deadline, by deadline.

    A sorted list, as in `ClaimQueue`: looking costs O(1), coming and leaving O(log n). Most come at the end, since
    their deadlines are as far off as the server's queue timeout says.
    """

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        """Watch a new request; nothing happens for one without a deadline."""
        if request.deadline_s is not None:
            insort(self._requests, request, key=_by_deadline)

    def discard(self, request: Request) -> None:
        """Watch a request no longer: it was begun, or it ended. Twice is harmless."""
        if request.deadline_s is None:
            return
        index = bisect_left(self._requests, _by_deadline(request), key=_by_deadline)
        if index < len(self._requests) and self._requests[index] is request:
            del self._requests[index]

    def expired(self, now: float) -> tuple[Request, ...]:
        """Those whose deadline has come, the longest overdue first; they stay here until discarded."""
        num_expired = 0
        while num_expired < len(self._requests) and _by_deadline(self._requests[num_expired])[0] <= now:
            num_expired += 1
        return tuple(self._requests[:num_expired])


def _by_deadline(request: Request) -> tuple[float, int]:
    assert request.deadline_s is not None, "only requests with a deadline are watched"
    return (request.deadline_s, request.claim)
