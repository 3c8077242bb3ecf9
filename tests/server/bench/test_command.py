"""The command as a process: on our engine with a model that counts, and on an endpoint that answers at once."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.fake_server import Events, FakeServer, usage
from tests.server.running_server import CLEAN_ENVIRONMENT, TIMEOUT_S, run_tidegate
from tidegate_server.__main__ import main

ROOT = Path(__file__).parents[3]


def bench_endpoint(server: FakeServer, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command against the server, to its end."""

    async def run() -> subprocess.CompletedProcess[str]:
        async with server.running() as base_url:
            flags = ("bench", f"--url={base_url}/v1", "--model=fake", *arguments)
            return await asyncio.to_thread(run_tidegate, *flags, **environment)

    return asyncio.run(run())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a model to whoever does not load it."""
    folder = tmp_path / "a-model"
    folder.mkdir()
    (folder / "config.json").touch()
    (folder / "model.safetensors").touch()
    return folder


def bench_counting(model: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command on an engine whose model counts."""
    return subprocess.run(
        [sys.executable, "-m", "tests.server.bench.counting_bench", f"--model={model}", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=CLEAN_ENVIRONMENT,
        cwd=ROOT,
        check=False,
    )


def test_our_engine_gives_table_numbers_and_timeline(model: Path, tmp_path: Path) -> None:
    numbers, picture = tmp_path / "a.json", tmp_path / "a.png"
    result = bench_counting(
        model, "--num-requests=6", "--output-len=5", "--max-num-seqs=3", f"--json={numbers}", f"--plot={picture}"
    )
    assert result.returncode == 0, result.stderr
    assert "range: 6 requests, 32 to 256 tokens in, 5 out, all at once, seed 0" in result.stdout
    assert "a-model, cpu, float32, kernels torch, 10000 KV blocks of 16 tokens" in result.stdout
    assert "6 finished, 0 failed" in result.stdout
    assert "bench: 6 of 6 requests" in result.stderr

    written = json.loads(numbers.read_text())
    assert written["summary"]["num_output_tokens"] == 30
    assert written["summary"]["engine"]["peak_running"] == 3
    assert [len(record["token_times_s"]) for record in written["measurement"]["records"]] == [5] * 6
    assert written["measurement"]["samples"]
    assert written["versions"]["python"]
    assert written["machine"]["num_cpus"] >= 1
    assert written["command"].startswith("tidegate bench --model=")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_overload_preempts_and_completes(model: Path) -> None:
    result = bench_counting(model, "--workload=overload", "--num-requests=24", "--kv-sequences=2")
    assert result.returncode == 0, result.stderr
    assert "24 finished, 0 failed" in result.stdout
    (preemptions,) = [line for line in result.stdout.splitlines() if line.startswith("preemptions")]
    assert not preemptions.endswith(" 0")


def test_an_endpoint_gives_the_same_table_without_the_engine() -> None:
    result = bench_endpoint(FakeServer(), "--num-requests=4", "--input-len=8", "--output-len=3")
    assert result.returncode == 0, result.stderr
    assert "4 finished, 0 failed" in result.stdout
    assert "preemptions           -\n" in result.stdout
    assert "errors                none\n" in result.stdout


def test_a_trace_is_replayed_with_its_lengths(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,7,2\n2023-11-16 18:15:46.7,9,3\n"
    )
    server = FakeServer()
    result = bench_endpoint(server, f"--trace={trace}")
    assert result.returncode == 0, result.stderr
    assert [(len(body["prompt"]), body["max_tokens"]) for body in server.bodies] == [(7, 2), (9, 3)]


def test_failed_requests_are_counted_and_are_exit_code_1() -> None:
    server = FakeServer()
    server.refuse_with = 503
    result = bench_endpoint(server, "--num-requests=2")
    assert result.returncode == 1
    assert "0 finished, 2 failed" in result.stdout
    assert "2 x HTTP 503" in result.stdout


def test_an_interruption_tells_what_was_measured() -> None:
    def first_token_only(body: dict[str, Any]) -> Events:
        yield usage(len(body["prompt"]), 0)

    async def run() -> tuple[int, str]:
        server = FakeServer(first_token_only)
        server.hold = asyncio.Event()
        async with server.running() as base_url:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tidegate_server", "bench", f"--url={base_url}/v1", "--model=fake",
                "--num-requests=3", stdout=asyncio.subprocess.PIPE, env=CLEAN_ENVIRONMENT,
            )  # fmt: skip
            while len(server.bodies) < 3:
                await asyncio.sleep(0)
            process.send_signal(signal.SIGINT)
            out, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
            server.hold.set()
            assert process.returncode is not None
            return process.returncode, out.decode()

    code, out = asyncio.run(run())
    assert code == 130
    assert "interrupted" in out
    assert "0 finished, 0 failed, 3 unfinished" in out


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["--workload=burst"], "tidegate: --workload: 'burst' is not one of"),
        (["--trace=/no/such/file"], "tidegate: --trace: /no/such/file cannot be read"),
        (["--plot=a.doc"], "tidegate: --plot: a.doc is no picture"),
        (["--rate=0.001", "--duration=1ms"], "tidegate: --duration: no request arrives within it"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(
    arguments: list[str], start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(start)
    assert told.err.count("\n") == 1


def test_a_damaged_trace_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1}\n{"timestamp": 5}\n')
    assert main(["bench", f"--trace={trace}"]) == 2
    assert "is no trace: line 2" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    result = run_tidegate("bench", f"--model={tmp_path}/nothing")
    assert result.returncode == 1
    assert "tidegate: ModelNotFound: " in result.stderr


def test_the_help_tells_the_workloads_and_the_engines_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    for word in ("shared-prefix", "--max-num-batched-tokens", "--metrics-url"):
        assert word in told


@pytest.mark.real_model
def test_the_embedded_model_is_measured() -> None:
    result = run_tidegate("bench", "--num-requests=2", "--input-len=16", "--output-len=4", "--num-kv-blocks=16")
    assert result.returncode == 0, result.stderr
    assert "2 finished, 0 failed" in result.stdout
    assert "smollm2-135m-instruct, cpu" in result.stdout
