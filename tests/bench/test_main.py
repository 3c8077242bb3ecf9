import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.fake_server import FakeServer
from tidegate_bench.__main__ import main, remake_command


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The fake endpoint's URL; it serves in a thread, as `main` brings an event loop of its own."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    urls: list[str] = []
    started = threading.Event()

    async def serve() -> None:
        async with FakeServer().running() as url:
            urls.append(url)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    started.wait(timeout=60)
    yield urls[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(timeout=60)
    loop.close()


def test_run_prints_a_table_and_writes_json(endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "result.json"
    arguments = ["run", endpoint, "--workloads", "W1,W4", "--quick", "--repeats", "2", "--output", str(output)]
    assert main(arguments) == 0
    assert "| W4" in capsys.readouterr().out
    decoded = json.loads(output.read_text())
    assert [(run["workload"], run["repeat"]) for run in decoded["runs"]] == [("W1", 0), ("W1", 1), ("W4", 0), ("W4", 1)]
    assert decoded["model"] == "fake"


@pytest.mark.parametrize("workloads", ["W9", "", "W1;W4"])
def test_unknown_workloads_are_refused_with_the_known_ones(workloads: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "http://127.0.0.1:1", "--workloads", workloads])
    assert "W1,W2,W3,W4,W5" in capsys.readouterr().err


def test_endpoint_that_does_not_answer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "http://127.0.0.1:1", "--quick"]) == 1
    assert capsys.readouterr().err.startswith("tidegate_bench: http://127.0.0.1:1: ")


def test_nothing_to_measure_says_what_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--without-tidegate", "--peer", "none"]) == 1
    assert "--peer" in capsys.readouterr().err


def test_measuring_an_endpoint_needs_no_torch() -> None:
    code = "import sys, tidegate_bench.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param("limits --quick", "limits --quick", id="as it was given"),
        pytest.param("kernels --publish --output out.json --rounds 3", "kernels --rounds 3", id="not where it went"),
        pytest.param("kernels --output=out.json", "kernels", id="nor in one word"),
        pytest.param(
            "compare --llama-server /home/me/llama-server", "compare --llama-server llama-server", id="no folder"
        ),
    ],
)
def test_the_command_of_a_result_makes_it_again_anywhere(given: str, expected: str) -> None:
    assert remake_command(given.split()) == f"python -m tidegate_bench {expected}"


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (["kernels", "--kernels", "sort"], "gemm"),
        (["limits", "--parts", "smell"], "memory"),
        (["engine", "--parts", "smell"], "overload"),
    ],
)
def test_unknown_parts_are_refused_with_the_known_ones(
    arguments: list[str], known: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert known in capsys.readouterr().err
