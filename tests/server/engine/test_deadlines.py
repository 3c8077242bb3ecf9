from hypothesis import given
from hypothesis import strategies as st

from tests.server.engine.test_request import make_request
from tidegate_server.engine.deadlines import Deadlines
from tidegate_server.engine.request import Request


def waiting(claim: int, deadline_s: float | None) -> Request:
    request = make_request()
    request.claim, request.deadline_s = claim, deadline_s
    return request


def test_a_request_is_overdue_from_its_deadline_on() -> None:
    deadlines = Deadlines()
    request = waiting(0, 5.0)
    deadlines.add(request)
    assert deadlines.expired(4.999) == ()
    assert deadlines.expired(5.0) == (request,)


def test_a_request_without_a_deadline_waits_for_ever() -> None:
    deadlines = Deadlines()
    request = waiting(0, None)
    deadlines.add(request)
    assert deadlines.expired(1e12) == ()
    deadlines.discard(request)


def test_a_request_that_was_begun_is_never_overdue_and_one_with_its_id_and_deadline_still_is() -> None:
    deadlines = Deadlines()
    begun, other = waiting(0, 5.0), waiting(1, 5.0)
    deadlines.add(begun)
    deadlines.add(other)
    deadlines.discard(begun)
    deadlines.discard(begun)
    assert deadlines.expired(9.0) == (other,)


@given(
    deadlines_s=st.lists(st.none() | st.integers(0, 9), max_size=12),
    begun=st.sets(st.integers(0, 11)),
    now=st.integers(-1, 10),
)
def test_the_overdue_are_told_in_the_order_of_their_deadlines(
    deadlines_s: list[int | None], begun: set[int], now: int
) -> None:
    requests = [waiting(claim, deadline_s) for claim, deadline_s in enumerate(deadlines_s)]
    deadlines = Deadlines()
    for request in requests:
        deadlines.add(request)
    for claim in begun & set(range(len(requests))):
        deadlines.discard(requests[claim])
    overdue = [
        (request.deadline_s, request.claim)
        for request in requests
        if request.claim not in begun and request.deadline_s is not None and request.deadline_s <= now
    ]
    expired = deadlines.expired(now)
    assert [(request.deadline_s, request.claim) for request in expired] == sorted(overdue)
    for request in expired:
        deadlines.discard(request)
    assert deadlines.expired(now) == ()
