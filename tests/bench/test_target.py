import asyncio
from collections.abc import Sequence

import pytest

from tests.bench.fake_server import FakeServer, tokens
from tidegate_bench.record import RequestRecord
from tidegate_bench.target import HttpTarget, first_model
from tidegate_bench.workloads import QUICK, PlannedRequest, Workload, build_workload


def run_against(server: FakeServer, workload: Workload, suffix: str = "") -> Sequence[RequestRecord]:
    async def run() -> Sequence[RequestRecord]:
        async with server.running() as base_url:
            return await HttpTarget(base_url + suffix, "fake").run(workload)

    return asyncio.run(run())


@pytest.mark.parametrize("name", ["W1", "W2", "W4"])
def test_every_request_is_served_with_its_exact_lengths(name: str) -> None:
    workload = build_workload(name, QUICK)
    records = run_against(FakeServer(), workload)
    assert [record.error for record in records] == [None] * len(workload.requests)
    assert [(record.index, record.num_prompt_tokens, record.num_output_tokens) for record in records] == [
        (request.index, len(request.prompt_token_ids), request.num_output_tokens) for request in workload.requests
    ]


def test_times_of_a_request_are_in_order() -> None:
    for record in run_against(FakeServer(), build_workload("W1", QUICK)):
        times = [record.arrival_s, record.sent_s, *record.event_times_s, record.end_s]
        assert times == sorted(times)


def test_burst_is_on_its_way_before_any_answer() -> None:
    workload = build_workload("W1", QUICK)

    async def run() -> int:
        server = FakeServer()
        server.hold = asyncio.Event()
        async with server.running() as base_url:
            served = asyncio.create_task(_run(base_url, workload))
            while server.most_at_once < len(workload.requests):
                await asyncio.sleep(0)
            server.hold.set()
            assert all(record.error is None for record in await served)
        return server.most_at_once

    assert asyncio.run(asyncio.wait_for(run(), 60)) == len(workload.requests)


async def _run(base_url: str, workload: Workload) -> Sequence[RequestRecord]:
    return await HttpTarget(base_url, "fake").run(workload)


def test_open_loop_keeps_its_arrivals_while_answers_are_late() -> None:
    # The first stream stays open until the last request has come: a closed loop would never send it.
    workload = Workload("late", tuple(PlannedRequest(i, 0.01 * i, (1000,) * 4, 2) for i in range(5)))

    async def run() -> Sequence[RequestRecord]:
        server = FakeServer()
        server.hold = asyncio.Event()
        async with server.running() as base_url:
            served = asyncio.create_task(_run(base_url, workload))
            while len(server.bodies) < 5:
                await asyncio.sleep(0)
            server.hold.set()
            return await served

    records = asyncio.run(asyncio.wait_for(run(), 60))
    assert all(record.error is None for record in records)
    assert all(record.sent_s >= record.arrival_s for record in records)


def test_base_url_may_end_in_v1() -> None:
    [record] = run_against(FakeServer(), build_workload("W4", QUICK), suffix="/v1/")
    assert record.error is None


def test_one_unanswered_request_leaves_the_others_alone() -> None:
    workload = build_workload("W1", QUICK)
    longest = max(len(request.prompt_token_ids) for request in workload.requests)
    server = FakeServer(lambda body: iter(()) if len(body["prompt"]) == longest else tokens(body))
    failed = [record.error for record in run_against(server, workload) if record.error is not None]
    assert len(failed) == sum(len(request.prompt_token_ids) == longest for request in workload.requests)


def test_first_model_is_what_the_endpoint_lists() -> None:
    async def run() -> str:
        async with FakeServer().running() as base_url:
            return await first_model(base_url)

    assert asyncio.run(run()) == "fake"
