"""Everybody who waits for blocks or a seat, in the order in which they will get them."""

from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from tidegate_server.engine.batch import RequestId
from tidegate_server.engine.request import Request, is_queued

# So many more entries than requests are kept before those without effect are looked for.
_MIN_AGES_TO_SORT_OUT: Final = 256


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

    Of those who have waited too long, the oldest is the *elder*: it goes before everybody. Whoever leaves next is no
    elder: so, while both wait, every second place is the queue's own, and a long queue of low priority does not keep a
    high one waiting in its turn.

    Args:
        max_age_s: who began to wait so long ago may become the elder, also when it waits again: or requests that came
            later would overtake one that was preempted.

    Attributes:
        num_tokens: that all of them still have to compute.
    """

    def __init__(self, queue: WaitingQueue, max_age_s: float) -> None:
        self._queue = queue
        self._max_age_s = max_age_s
        self._num_tokens_of: dict[RequestId, int] = {}
        # (when it began to wait, claim, request), a heap; entries of those who left are skipped when they come up.
        self._ages: list[tuple[float, int, Request]] = []
        self._elder: Request | None = None  # not in the queue
        self._is_elders_turn = True
        self._holders: dict[RequestId, Request] = {}
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._queue) + (self._elder is not None)

    def __iter__(self) -> Iterator[Request]:
        if self._elder is not None:
            yield self._elder
        yield from self._queue

    @property
    def holders(self) -> Collection[Request]:
        """Those who kept blocks: few of many who wait."""
        return self._holders.values()

    def first(self) -> Request:
        """The one to admit next."""
        return self._elder if self._elder is not None else self._queue.first()

    def most_urgent(self) -> Request:
        """The first of the best priority, whatever its age: who may take from those who run."""
        if self._elder is None:
            return self._queue.first()
        if not self._queue or self._elder.priority <= self._queue.first().priority:
            return self._elder
        return self._queue.first()

    def add(self, request: Request, now: float) -> None:
        num_tokens = len(request.token_ids) - max(request.num_computed_tokens, request.num_swapped_tokens)
        self._num_tokens_of[request.request_id] = num_tokens
        self.num_tokens += num_tokens
        self._queue.add(request)
        if request.block_table:
            self._holders[request.request_id] = request
        if request.queued_s is None:
            request.queued_s = now
        self._forget_some()
        heappush(self._ages, (request.queued_s, request.claim, request))

    def remove(self, request: Request) -> None:
        if request is self._elder:
            self._elder = None
            self._is_elders_turn = False
        else:
            self._queue.remove(request)
            self._is_elders_turn = True
        self._holders.pop(request.request_id, None)
        self.num_tokens -= self._num_tokens_of.pop(request.request_id)

    def promote(self, now: float) -> Request | None:
        """Make the oldest of those who have waited too long the elder; None: there is none, or it is not its turn."""
        if self._elder is not None or not self._is_elders_turn:
            return None
        while self._ages and self._ages[0][0] <= now - self._max_age_s:
            _, _, request = heappop(self._ages)
            if is_queued(request.state):
                self._queue.remove(request)
                self._elder = request
                return request
        return None

    def _forget_some(self) -> None:
        """Let go of those who left, now and then: with them go their tokens."""
        if len(self._ages) > 2 * len(self._queue) + _MIN_AGES_TO_SORT_OUT:
            waiting = {entry[2].request_id: entry for entry in self._ages if is_queued(entry[2].state)}
            self._ages = list(waiting.values())
            heapify(self._ages)
