"""Shares the engine out between tenants: among those who wait, whoever was given least is next."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tidegate_server.engine.claim_queue import ClaimQueue
from tidegate_server.engine.request import Request, RequestState

# What a token counts, as in the paper: a prompt is computed many tokens at a time, an output one by one.
INPUT_WEIGHT: Final = 1
OUTPUT_WEIGHT: Final = 2

# Counters of tenants who left are kept until so many are there, and then looked through for those without effect.
_MIN_COUNTERS_TO_SORT_OUT: Final = 1024


@dataclass(slots=True)
class _PriorityClass:
    """The waiting requests of one priority."""

    returning: ClaimQueue = field(default_factory=ClaimQueue)  # preempted, or computed in part by another choice
    new: dict[str, ClaimQueue] = field(default_factory=dict)  # by tenant; none is empty


class FairShareQueue:
    """Waiting requests, of which the next is of the best priority, and among those of the least served tenant.

    Each tenant has a counter of the weighted tokens it was given. It is lifted when the tenant begins to wait, to the
    least counter of those who wait, so that nobody saves up a claim by sending nothing. Requests that were begun come
    before all new ones of their priority, whoever sent them. Without competition nobody is held back.

    Source:
        Virtual token counter, Sheng et al. 2024, "Fairness in Serving Large Language Models", Algorithm 2.
    """

    def __init__(self) -> None:
        self._classes: dict[int, _PriorityClass] = {}  # by priority; none is empty
        self._counters: dict[str, int] = {}  # weighted tokens, by tenant
        self._num_new: Counter[str] = Counter()  # new requests that wait, by tenant; no zeros
        self._num_requests = 0
        self._last_to_leave: str | None = None  # the tenant that stopped waiting last
        self._num_counters_to_sort_out = _MIN_COUNTERS_TO_SORT_OUT

    def __len__(self) -> int:
        return self._num_requests

    def __iter__(self) -> Iterator[Request]:
        """By priority; within one, those that were begun, then tenant by tenant."""
        for priority in sorted(self._classes):
            yield from self._classes[priority].returning
            for requests in self._classes[priority].new.values():
                yield from requests

    def first(self) -> Request:
        """The one to admit next. Costs O(tenants that wait)."""
        best = self._classes[min(self._classes)]
        if best.returning:
            return best.returning.first()
        heads = (requests.first() for requests in best.new.values())
        return min(heads, key=lambda request: (self._counters[request.tenant], request.claim))

    def add(self, request: Request) -> None:
        requests = self._classes.setdefault(request.priority, _PriorityClass())
        if _is_returning(request):
            requests.returning.add(request)
        else:
            if request.tenant not in self._num_new:
                self._lift(request.tenant)
            self._num_new[request.tenant] += 1
            requests.new.setdefault(request.tenant, ClaimQueue()).add(request)
        self._num_requests += 1

    def remove(self, request: Request) -> None:
        """Take a request out, be it admitted or ended; its priority and state are still those it was added with."""
        tenant = request.tenant
        requests = self._classes[request.priority]
        if _is_returning(request):
            requests.returning.remove(request)
        else:
            requests.new[tenant].remove(request)
            if not requests.new[tenant]:
                del requests.new[tenant]
            self._num_new[tenant] -= 1
            if self._num_new[tenant] == 0:
                del self._num_new[tenant]
                self._last_to_leave = tenant
        if not requests.returning and not requests.new:
            del self._classes[request.priority]
        self._num_requests -= 1

    def charge(self, tenant: str, num_input: int, num_output: int) -> None:
        """Count tokens that a tenant was given: of a prompt when it is admitted, of an output as they are drawn."""
        weighted = INPUT_WEIGHT * num_input + OUTPUT_WEIGHT * num_output
        self._counters[tenant] = self._counters.get(tenant, 0) + weighted

    def counter(self, tenant: str) -> int:
        """Weighted tokens that a tenant was given, as far as they still count."""
        return self._counters.get(tenant, 0)

    def _lift(self, tenant: str) -> None:
        floor = self._floor()
        if len(self._counters) >= self._num_counters_to_sort_out:
            self._sort_out(floor)
        self._counters[tenant] = max(self.counter(tenant), floor)

    def _floor(self) -> int:
        """What a tenant that begins to wait has at least."""
        if self._num_new:
            return min(self._counters[tenant] for tenant in self._num_new)
        # Nobody to compare with: what the last one had is where the others would have been.
        return 0 if self._last_to_leave is None else self.counter(self._last_to_leave)

    def _sort_out(self, floor: int) -> None:
        """Forget the counters that a return would lift anyway: tenants come and go without end."""
        kept = {
            tenant: counter
            for tenant, counter in self._counters.items()
            if counter > floor or tenant in self._num_new or tenant == self._last_to_leave
        }
        self._counters = kept
        self._num_counters_to_sort_out = max(_MIN_COUNTERS_TO_SORT_OUT, 2 * len(kept))


def _is_returning(request: Request) -> bool:
    """Whether it was begun, by itself or by another choice of its prompt: what it holds is not to lie idle."""
    return request.state is not RequestState.WAITING
