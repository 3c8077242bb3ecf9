"""Requests that are not admitted: what their clients hear, and that each is counted once."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.server.api.api_server import ApiServer
from tidegate_contract.metric_names import REFUSAL_REASONS
from tidegate_server.api.request_terms import TermsPolicy
from tidegate_server.errors import DeadlineExceeded, EngineError, Overloaded, RequestError

COMPLETIONS = "/v1/completions"


def refused(server: ApiServer) -> dict[str, float]:
    """How many requests were refused, by reason; reasons without any are left out."""
    counts = {reason: server.count("tidegate_admission_refused_total", reason=reason) for reason in REFUSAL_REASONS}
    return {reason: count for reason, count in counts.items() if count}


def post_and_fail(
    server: ApiServer, failure: RequestError, body: dict[str, object], num_choices: int = 1
) -> httpx.Response:
    """The reply to a request that the engine ends with a failure before its first output."""
    server.close_gate()
    with ThreadPoolExecutor(1) as visitor, httpx.Client(base_url=server.url, timeout=30) as http:
        reply = visitor.submit(http.post, COMPLETIONS, json=body)
        server.until(lambda: len(server.engine.added) == num_choices)
        server.call(lambda: server.engine.stop(failure))
        return reply.result()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("num_choices", [1, 3])
def test_a_full_queue_is_a_503_that_says_when_to_come_again(server: ApiServer, stream: bool, num_choices: int) -> None:
    full = Overloaded("The queue is full", code="queue_full", retry_after_s=17)
    reply = post_and_fail(server, full, {"prompt": "a", "stream": stream, "n": num_choices}, num_choices)
    assert reply.status_code == 503
    assert (reply.headers["retry-after"], reply.headers["connection"]) == ("17", "close")
    assert reply.json()["error"]["code"] == "queue_full"
    assert refused(server) == {"queue_full": 1}
    assert server.count("tidegate_requests_total", outcome="error") == 0
    server.until(lambda: not server.engine.open_ids)


@pytest.mark.parametrize("stream", [True, False])
def test_a_wait_past_the_deadline_is_a_504(server: ApiServer, stream: bool) -> None:
    reply = post_and_fail(server, DeadlineExceeded("It waited for 3 s"), {"prompt": "a", "stream": stream})
    assert reply.status_code == 504
    assert reply.json()["error"] == {
        "message": "It waited for 3 s", "type": "timeout_error", "param": None, "code": "deadline_exceeded",
    }  # fmt: skip
    assert refused(server) == {"deadline": 1}
    assert server.count("tidegate_requests_total", outcome="refused") == 1


def test_a_failure_of_the_engine_is_no_refusal(server: ApiServer) -> None:
    assert post_and_fail(server, EngineError("it broke"), {"prompt": "a"}).status_code == 500
    assert refused(server) == {}
    assert server.count("tidegate_requests_total", outcome="error") == 1


def test_what_never_fits_is_counted_and_what_is_merely_wrong_is_not(server: ApiServer, http: httpx.Client) -> None:
    assert http.post(COMPLETIONS, json={"prompt": "x" * 1000}).status_code == 400
    assert http.post(COMPLETIONS, json={"prompt": 5}).status_code == 400
    assert http.post(COMPLETIONS, json={"prompt": "a", "model": "another"}).status_code == 404
    assert refused(server) == {"never_fits": 1}
    assert server.count("tidegate_requests_total", outcome="refused") == 3


def test_a_pod_that_cannot_serve_counts_why() -> None:
    with ApiServer(ready=False) as server, httpx.Client(base_url=server.url, timeout=30) as http:
        http.post(COMPLETIONS, json={"prompt": "a"})
        assert refused(server) == {"starting": 1}
        server.call(lambda: server.lifecycle.ask_to_drain())
        http.post(COMPLETIONS, json={"prompt": "a"})
        assert refused(server) == {"starting": 1, "draining": 1}
        server.call(lambda: server.lifecycle.failed("gone"))
        http.post(COMPLETIONS, json={"prompt": "a"})
        http.get("/v1/models")
        assert refused(server) == {"starting": 1, "draining": 1, "failed": 1}


def test_tenant_and_deadline_reach_the_engine_with_every_choice() -> None:
    with ApiServer(terms=TermsPolicy(queue_timeout_s=60)) as server, httpx.Client(base_url=server.url) as http:
        for key, timeout in (("a", "5"), ("b", "100")):
            headers = {"Authorization": f"Bearer {key}", "X-Request-Timeout": timeout}
            assert http.post(COMPLETIONS, json={"prompt": "a", "n": 2}, headers=headers).status_code == 200
        tenants = [request.tenant for request in server.engine.added]
        assert tenants[0] == tenants[1] != tenants[2] == tenants[3]
        deadlines = [request.deadline_s for request in server.engine.added]
        assert None not in deadlines
        assert deadlines[0] == deadlines[1] != deadlines[2] == deadlines[3]


def test_a_wrong_timeout_is_a_400_before_the_engine_hears_of_it(server: ApiServer, http: httpx.Client) -> None:
    reply = http.post(COMPLETIONS, json={"prompt": "a"}, headers={"X-Request-Timeout": "soon"})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "x-request-timeout"
    assert not server.engine.added
