import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tidegate_bench.launch import Launch
from tidegate_bench.server_process import ServerProcess, free_port
from tidegate_bench.stopping import until_told_to_stop


def test_sigterm_ends_the_servers_too(tmp_path: Path) -> None:
    port = free_port()
    launch = Launch(argv=(sys.executable, "-m", "tests.bench.serve_fake", "--port", str(port)))
    server = ServerProcess(launch, port, tmp_path / "log")

    async def measure() -> None:
        async with server:
            assert len(server.tree.living()) == 2
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(until_told_to_stop(measure()))
    assert server.tree.living() == []


def test_finished_work_gives_its_result() -> None:
    async def work() -> int:
        return 7

    assert asyncio.run(until_told_to_stop(work())) == 7
