"""Requests in the order in which they are served."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from tidegate_server.engine.request import Request


class ClaimQueue:
    """Requests by priority, then arrival: those served first come first, those preempted first come last.

    A sorted list: finding costs O(log n), and what an insertion moves is 8 bytes for each request behind it.
    """

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    def first(self) -> Request:
        """The one to serve next."""
        return self._requests[0]

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=_precedence)

    def remove(self, request: Request) -> None:
        index = bisect_left(self._requests, request.precedence, key=_precedence)
        assert self._requests[index] is request, f"{request.request_id} is not queued here"
        del self._requests[index]


def _precedence(request: Request) -> tuple[int, int]:
    return request.precedence
