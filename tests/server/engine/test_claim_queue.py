from hypothesis import given
from hypothesis import strategies as st

from tests.server.engine.test_request import make_request
from tidegate_server.engine.claim_queue import ClaimQueue


@given(priorities=st.lists(st.integers(-2, 2), max_size=12), data=st.data())
def test_requests_stand_by_priority_and_then_arrival(priorities: list[int], data: st.DataObject) -> None:
    requests = []
    for claim, priority in enumerate(priorities):
        request = make_request()
        request.priority, request.claim = priority, claim
        requests.append(request)
    queue = ClaimQueue()
    for request in data.draw(st.permutations(requests)):
        queue.add(request)
    leaving = data.draw(st.lists(st.sampled_from(requests), unique_by=id)) if requests else []
    for request in leaving:
        queue.remove(request)
    staying = [request for request in requests if request not in leaving]
    assert list(queue) == sorted(staying, key=lambda request: (request.priority, request.claim))
    assert len(queue) == len(staying)
