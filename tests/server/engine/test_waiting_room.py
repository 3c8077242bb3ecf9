"""Nobody is overtaken for ever, and the tokens of those who wait are counted."""

from tests.server.engine.test_request import make_request as make_any
from tidegate_server.engine.batch import RequestId
from tidegate_server.engine.claim_queue import ClaimQueue
from tidegate_server.engine.request import Request, RequestState
from tidegate_server.engine.waiting_room import WaitingRoom


def make_request(name: str, priority: int, claim: int) -> Request:
    request = make_any()
    request.request_id, request.priority, request.claim = RequestId(name), priority, claim
    return request


def room_of(*requests: Request) -> WaitingRoom:
    room = WaitingRoom(ClaimQueue(), max_age_s=60.0)
    for now, request in enumerate(requests):
        room.add(request, float(now))
    return room


def test_who_waits_too_long_goes_before_every_priority() -> None:
    patient, urgent = make_request("patient", priority=9, claim=1), make_request("urgent", priority=0, claim=2)
    room = room_of(patient, urgent)
    assert room.promote(59.9) is None
    assert room.first() is urgent
    assert room.promote(60.0) is patient
    assert room.first() is patient


def test_every_second_place_is_the_queues_own_while_many_have_waited_too_long() -> None:
    low = [make_request(f"low {claim}", priority=5, claim=claim) for claim in range(3)]
    high = [make_request(f"high {claim}", priority=0, claim=claim) for claim in range(3, 5)]
    room, order = room_of(*low, *high), []
    while room:
        room.promote(1000.0)
        order.append(room.first())
        room.remove(order[-1])
        order[-1].move_to(RequestState.PREFILLING)
    assert order == [low[0], high[0], low[1], high[1], low[2]]


def test_the_most_urgent_is_of_the_best_priority_whatever_its_age() -> None:
    low, high = make_request("low", priority=5, claim=0), make_request("high", priority=0, claim=1)
    room = room_of(low)
    room.promote(100.0)
    assert room.most_urgent() is low
    room.add(high, 100.0)
    assert (room.first(), room.most_urgent()) == (low, high)


def test_who_left_is_not_promoted() -> None:
    served, waiting = make_request("served", priority=1, claim=1), make_request("waiting", priority=1, claim=2)
    room = room_of(served, waiting)
    room.remove(served)
    served.move_to(RequestState.PREFILLING)
    assert room.promote(100.0) is waiting


def test_who_waits_again_is_as_old_as_before() -> None:
    request = make_request("a", priority=1, claim=1)
    room = room_of(request)
    room.remove(request)
    request.move_to(RequestState.PREFILLING)
    request.num_preemptions += 1
    request.move_to(RequestState.PREEMPTED)
    room.add(request, 50.0)
    assert room.promote(59.0) is None
    assert room.promote(60.0) is request


def test_tokens_that_are_kept_need_not_be_computed() -> None:
    new, trimmed, swapped = (make_request(name, priority=0, claim=n) for n, name in enumerate("abc"))
    trimmed.num_computed_tokens = 2
    swapped.num_swapped_tokens = 1
    room = room_of(new, trimmed, swapped)
    assert room.num_tokens == 3 * len(new.token_ids) - 3
    room.remove(trimmed)
    assert room.num_tokens == 2 * len(new.token_ids) - 1


def test_requests_that_left_are_not_kept() -> None:
    room = room_of()
    for claim in range(1000):
        request = make_request(str(claim), priority=0, claim=claim)
        room.add(request, 0.0)
        room.remove(request)
        request.move_to(RequestState.FINISHED)
    assert len(room._ages) < 300
