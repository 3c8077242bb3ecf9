"""Reading pods' loads over HTTP: good answers, and every kind of bad one."""

import asyncio
from collections.abc import Mapping

import msgspec
from aiohttp import web

from tests.operator.make import pod, report
from tidegate_contract.admin import LoadReport
from tidegate_contract.labels import LOAD_PATH
from tidegate_operator.load import HttpLoadReader
from tidegate_operator.pods import Pod


def read(body: bytes, *pods: Pod, status: int = 200) -> Mapping[str, LoadReport]:
    async def scenario() -> Mapping[str, LoadReport]:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(body=body, status=status)

        app = web.Application()
        app.add_routes([web.get(LOAD_PATH, answer)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        reader = HttpLoadReader(port)
        try:
            return await reader.read(pods)
        finally:
            await reader.close()
            await runner.cleanup()

    return asyncio.run(scenario())


HERE = pod("here", ip="127.0.0.1")
GOOD = msgspec.json.encode(report(num_running=3))


def test_report_is_read_by_the_pods_name() -> None:
    assert read(GOOD, HERE)["here"].num_running == 3


def test_fields_of_a_newer_server_are_ignored() -> None:
    newer = GOOD[:-1] + b', "something_new": [1, 2]}'
    assert read(newer, HERE)["here"].num_running == 3


def test_garbage_an_error_and_a_dead_pod_are_silence() -> None:
    assert read(b"not JSON", HERE) == {}
    assert read(b'{"num_running": "many"}', HERE) == {}
    assert read(GOOD, HERE, status=503) == {}
    assert set(read(GOOD, HERE, pod("dead", ip="127.0.0.2"))) == {"here"}


def test_only_serving_pods_with_an_address_are_asked() -> None:
    others = (
        pod("loading", ip="127.0.0.1", ready=False),
        pod("leaving", ip="127.0.0.1", is_terminating=True),
        pod("placeless", ip=None),
    )
    assert set(read(GOOD, HERE, *others)) == {"here"}
