import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate_bench.launch import BenchError, Launch, Speaks
from tidegate_bench.process_tree import ProcessTree
from tidegate_bench.server_process import ServerProcess, free_port
from tidegate_bench.workloads import QUICK, build_workload

MODULE = "tests.bench.serve_fake"


def launch(port: int, *arguments: str) -> Launch:
    return Launch(argv=(sys.executable, "-m", MODULE, "--port", str(port), *arguments))


def test_ready_server_serves_and_leaves_no_process_behind(tmp_path: Path) -> None:
    port = free_port()

    async def run() -> ProcessTree:
        async with ServerProcess(launch(port), port, tmp_path / "log") as server:
            records = await server.target.run(build_workload("W4", QUICK))
            assert [record.error for record in records] == [None]
            assert server.ready_s > 0
            # The child too; the server is its parent.
            assert len(server.tree.living()) == 2
            assert server.tree.peak_rss_bytes > 0
            return server.tree

    assert asyncio.run(run()).living() == []


@pytest.mark.parametrize(("path", "problem"), [("/load", None), ("/v1/models", "names no kernels"), ("/x", "404")])
def test_kernels_are_what_the_server_s_load_document_names(tmp_path: Path, path: str, problem: str | None) -> None:
    port = free_port()
    telling = replace(launch(port), load_url=f"http://127.0.0.1:{port}{path}")
    server = ServerProcess(telling, port, tmp_path / "log")

    async def kernels() -> str:
        async with server:
            return server.kernels

    if problem is None:
        assert asyncio.run(kernels()) == "fake-isa"
    else:
        with pytest.raises(BenchError, match=problem):
            asyncio.run(kernels())
    assert server.tree.living() == []


def test_server_that_ends_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    port = free_port()

    async def run() -> None:
        async with ServerProcess(launch(port, "--fail"), port, tmp_path / "log"):
            raise AssertionError("it never becomes ready")

    with pytest.raises(BenchError, match=r"(?s)exit status 3.*no weights found"):
        asyncio.run(run())


def test_server_that_is_never_ready_is_stopped(tmp_path: Path) -> None:
    silent = Launch(argv=(sys.executable, "-c", "import time; time.sleep(600)"), ready_timeout_s=0.5)
    server = ServerProcess(silent, free_port(), tmp_path / "log")

    async def run() -> None:
        async with server:
            raise AssertionError("it never becomes ready")

    with pytest.raises(BenchError, match="not ready after"):
        asyncio.run(run())
    assert server.tree.living() == []


def test_error_in_the_measurement_still_stops_the_server(tmp_path: Path) -> None:
    port = free_port()
    server = ServerProcess(launch(port), port, tmp_path / "log")

    async def run() -> None:
        async with server:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())
    assert server.tree.living() == []


def test_library_behind_pipes_is_served_like_a_server(tmp_path: Path) -> None:
    runner = Launch(argv=(sys.executable, "-m", "tests.bench.fake_runner"), speaks=Speaks.PIPES)
    workload = build_workload("W1", QUICK)

    async def run() -> None:
        async with ServerProcess(runner, 0, tmp_path / "log") as server:
            records = await server.target.run(workload)
            assert [record.index for record in records] == [request.index for request in workload.requests]
            assert all(record.ttft_s == 1.0 for record in records)

    asyncio.run(run())


def test_runner_that_ends_early_is_reported(tmp_path: Path) -> None:
    broken = Launch(argv=(sys.executable, "-c", "raise SystemExit('no such model')"), speaks=Speaks.PIPES)

    async def run() -> None:
        async with ServerProcess(broken, 0, tmp_path / "log"):
            raise AssertionError("it never becomes ready")

    with pytest.raises(BenchError, match="no such model"):
        asyncio.run(run())
