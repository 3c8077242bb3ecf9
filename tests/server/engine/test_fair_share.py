"""Who is next when tenants share the engine."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.server.engine.test_request import make_request
from tidegate_server.engine.fair_share import OUTPUT_WEIGHT, FairShareQueue
from tidegate_server.engine.request import Request, RequestState


def waiting(claim: int, tenant: str, *, priority: int = 0, state: RequestState = RequestState.WAITING) -> Request:
    request = make_request()
    request.claim, request.tenant = claim, tenant
    request.priority, request.state = priority, state
    return request


def queue_of(*requests: Request) -> FairShareQueue:
    queue = FairShareQueue()
    for request in requests:
        queue.add(request)
    return queue


def served(queue: FairShareQueue, num_requests: int, num_input: int = 10) -> list[str]:
    """The tenants of the next requests, each charged for a prompt as it is admitted."""
    tenants = []
    for _ in range(num_requests):
        request = queue.first()
        queue.remove(request)
        queue.charge(request.tenant, num_input, 0)
        tenants.append(request.tenant)
    return tenants


def test_a_tenant_with_many_requests_does_not_hold_up_one_with_few() -> None:
    queue = queue_of(*(waiting(claim, "many") for claim in range(10)), waiting(10, "few"), waiting(11, "few"))
    assert served(queue, 5) == ["many", "few", "many", "few", "many"]


def test_one_tenant_alone_is_served_in_the_order_of_arrival() -> None:
    requests = [waiting(claim, "a") for claim in range(5)]
    queue = queue_of(*reversed(requests))
    assert list(queue) == requests
    for request in requests:
        assert queue.first() is request
        queue.remove(request)
    assert len(queue) == 0


def test_who_was_given_less_is_next_and_output_counts_double() -> None:
    queue = queue_of(waiting(0, "a"), waiting(1, "b"))
    queue.charge("a", 0, 6)
    queue.charge("b", 11, 0)
    assert queue.counter("a") == 6 * OUTPUT_WEIGHT == 12
    assert queue.first().tenant == "b"


def test_equal_tenants_go_by_arrival() -> None:
    assert queue_of(waiting(1, "a"), waiting(0, "b")).first().tenant == "b"


def test_priority_goes_before_fairness() -> None:
    queue = queue_of(waiting(0, "a", priority=1), waiting(1, "b", priority=0))
    queue.charge("b", 1000, 0)
    assert queue.first().tenant == "b"


def test_a_preempted_request_returns_before_new_ones_of_its_priority_only() -> None:
    urgent, returning = waiting(3, "c", priority=-1), waiting(2, "b", state=RequestState.PREEMPTED)
    queue = queue_of(waiting(0, "a"), waiting(1, "a"), returning, urgent)
    queue.charge("b", 1000, 0)
    assert queue.first() is urgent
    queue.remove(urgent)
    assert queue.first() is returning


def test_a_choice_whose_prompt_is_computed_does_not_wait_behind_new_requests() -> None:
    choice = waiting(2, "b", state=RequestState.TRIMMED)
    queue = queue_of(waiting(0, "a"), waiting(1, "b"), choice)
    queue.charge("b", 1000, 0)
    assert queue.first() is choice


def test_preempted_requests_return_in_the_order_of_arrival() -> None:
    later, sooner = waiting(5, "a", state=RequestState.PREEMPTED), waiting(4, "b", state=RequestState.PREEMPTED)
    queue = queue_of(later, sooner)
    queue.charge("b", 1000, 0)
    assert queue.first() is sooner


def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    queue = queue_of(*(waiting(claim, "busy") for claim in range(100)))
    served(queue, 50)
    for claim in range(100, 110):
        queue.add(waiting(claim, "back"))
    assert served(queue, 6).count("back") == 3


def test_a_tenant_that_finds_nobody_waiting_starts_where_the_last_one_was() -> None:
    queue = queue_of(waiting(0, "first"))
    served(queue, 1, num_input=500)
    queue.add(waiting(1, "second"))
    queue.add(waiting(2, "first"))
    assert queue.counter("second") == queue.counter("first") == 500


def test_a_tenant_that_was_given_much_is_not_forgiven_by_leaving() -> None:
    queue = queue_of(waiting(0, "greedy"), waiting(1, "modest"), waiting(2, "modest"))
    queue.charge("greedy", 1000, 0)
    for request in [request for request in queue if request.tenant == "greedy"]:
        queue.remove(request)
    queue.add(waiting(3, "greedy"))
    assert served(queue, 3) == ["modest", "modest", "greedy"]


def test_tenants_that_left_are_forgotten_in_the_end() -> None:
    queue = queue_of(waiting(0, "stays"), waiting(1, "stays"))
    queue.charge("stays", 10_000, 0)
    for claim in range(2, 5000):
        request = waiting(claim, f"tenant {claim}")
        queue.add(request)
        queue.remove(request)
        queue.charge("stays", 1, 0)
    assert sum(queue.counter(f"tenant {claim}") > 0 for claim in range(5000)) < 2000
    assert queue.first().tenant == "stays"


@given(st.lists(st.integers(1, 50), min_size=2, max_size=4), st.integers(0, 60))
def test_tenants_that_always_wait_are_served_alike(sizes: Sequence[int], num_admissions: int) -> None:
    """However large a tenant's requests are: the counters differ by one request at most."""
    tenants = [str(number) for number in range(len(sizes))]
    queue = FairShareQueue()
    for claim in range(num_admissions * len(tenants) + len(tenants)):
        queue.add(waiting(claim, tenants[claim % len(tenants)]))
    for _ in range(num_admissions):
        request = queue.first()
        queue.remove(request)
        queue.charge(request.tenant, sizes[int(request.tenant)], 0)
        counters = [queue.counter(tenant) for tenant in tenants]
        assert max(counters) - min(counters) <= max(sizes)


class FairShareMachine(RuleBasedStateMachine):
    """The queue beside a list that is searched anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairShareQueue()
        self.waiting: list[Request] = []
        self.counters: dict[str, int] = {}
        self.last_to_leave: str | None = None
        self.claim = 0

    def new(self) -> list[Request]:
        return [request for request in self.waiting if request.state is RequestState.WAITING]

    @rule(
        tenant=st.sampled_from("abcd"),
        priority=st.integers(0, 1),
        state=st.sampled_from([RequestState.WAITING, RequestState.SWAPPED]),
    )
    def add(self, tenant: str, priority: int, state: RequestState) -> None:
        request = waiting(self.claim, tenant, priority=priority, state=state)
        self.claim += 1
        others = {request.tenant for request in self.new()}
        if state is RequestState.WAITING and tenant not in others:
            floor = 0
            if others:
                floor = min(self.counters[other] for other in others)
            elif self.last_to_leave is not None:
                floor = self.counters.get(self.last_to_leave, 0)
            self.counters[tenant] = max(self.counters.get(tenant, 0), floor)
        self.waiting.append(request)
        self.queue.add(request)

    @rule(tenant=st.sampled_from("abcd"), num_input=st.integers(0, 9), num_output=st.integers(0, 9))
    def charge(self, tenant: str, num_input: int, num_output: int) -> None:
        self.counters[tenant] = self.counters.get(tenant, 0) + num_input + 2 * num_output
        self.queue.charge(tenant, num_input, num_output)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.take(data.draw(st.sampled_from(self.waiting)))

    @precondition(lambda self: self.waiting)
    @rule()
    def admit(self) -> None:
        self.take(self.queue.first())

    def take(self, request: Request) -> None:
        self.queue.remove(request)
        self.waiting.remove(request)
        if request.state is RequestState.WAITING and request.tenant not in {other.tenant for other in self.new()}:
            self.last_to_leave = request.tenant

    @invariant()
    def the_first_is_the_least_served_of_the_best_priority(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert {request.claim for request in self.queue} == {request.claim for request in self.waiting}
        if self.waiting:
            assert self.queue.first() is min(self.waiting, key=self._rank)

    def _rank(self, request: Request) -> tuple[int, bool, int, int]:
        is_new = request.state is RequestState.WAITING
        return (request.priority, is_new, self.counters.get(request.tenant, 0) if is_new else 0, request.claim)


TestFairShareMachine = FairShareMachine.TestCase
