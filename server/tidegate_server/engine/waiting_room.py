"""Everybody who waits for blocks or a seat, in the order in which they will get them."""

from collections import deque
from collections.abc import Collection, Iterator
from typing import Protocol

from tidegate_server.engine.batch import RequestId
from tidegate_server.engine.request import Request, is_queued


class WaitingQueue(Protocol):
    """An order among those who wait."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...

    def first(self) -> Request:
        """The one to serve next."""
        ...

    def add(self, request: Request) -> None: ...

    def remove(self, request: Request) -> None: ...


class WaitingRoom:
    """A waiting queue that counts tokens, and in which nobody is overtaken for ever.

    Args:
        max_age_s: who has waited so long goes before every priority.

    Attributes:
        num_tokens: that all of them still have to compute.
    """

    def __init__(self, queue: WaitingQueue, max_age_s: float) -> None:
        self._queue = queue
        self._max_age_s = max_age_s
        self._num_tokens_of: dict[RequestId, int] = {}
        # (since, request, its stay), oldest first; entries of those who left are skipped when they come up.
        self._stays: deque[tuple[float, Request, int]] = deque()
        self._holders: dict[RequestId, Request] = {}
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    @property
    def holders(self) -> Collection[Request]:
        """Those who kept blocks: few of many who wait."""
        return self._holders.values()

    def first(self) -> Request:
        return self._queue.first()

    def add(self, request: Request, now: float) -> None:
        num_tokens = len(request.token_ids) - max(request.num_computed_tokens, request.num_swapped_tokens)
        self._num_tokens_of[request.request_id] = num_tokens
        self.num_tokens += num_tokens
        self._queue.add(request)
        if request.block_table:
            self._holders[request.request_id] = request
        self._stays.append((now, request, request.num_preemptions))

    def remove(self, request: Request) -> None:
        self._queue.remove(request)
        self._holders.pop(request.request_id, None)
        self.num_tokens -= self._num_tokens_of.pop(request.request_id)

    def promote(self, now: float) -> list[Request]:
        """Put those who have waited too long before everybody else; gives them."""
        promoted: list[Request] = []
        while self._stays and self._stays[0][0] <= now - self._max_age_s:
            _, request, stay = self._stays.popleft()
            if is_queued(request.state) and request.num_preemptions == stay and not request.is_aged:
                self._queue.remove(request)
                request.is_aged = True
                self._queue.add(request)
                promoted.append(request)
        return promoted
