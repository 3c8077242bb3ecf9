"""Requests in the order in which they are served."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import TypeAlias

from tidegate_server.engine.request import Request

Key: TypeAlias = tuple[int, ...]


class ClaimQueue:
    """Requests sorted by a key that is unique to each and does not change while it is here.

    A sorted list: finding costs O(log n), and the memory moved by an insertion is 8 bytes for each request behind it.
    """

    def __init__(self, key: Callable[[Request], Key]) -> None:
        self._key = key
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=self._key)

    def remove(self, request: Request) -> None:
        index = bisect_left(self._requests, self._key(request), key=self._key)
        assert self._requests[index] is request, f"{request.request_id} is not queued here"
        del self._requests[index]
