"""The `tidegate` command as a process: wrong calls, the real model, drains, crashes."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.server.running_server import CLEAN_ENVIRONMENT, TIMEOUT_S, RunningServer, run_tidegate, wait_for_status
from tidegate_kernels.cpu.library import load_library

MODEL = "smollm2-135m-instruct"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


def test_the_version_and_the_help_are_told() -> None:
    version = run_tidegate("--version")
    assert (version.returncode, version.stdout.split()[0]) == (0, "tidegate")
    overview = run_tidegate("--help")
    assert overview.returncode == 0
    assert "serve" in overview.stdout
    flags = run_tidegate("serve", "--help")
    assert flags.returncode == 0
    assert "--max-num-batched-tokens" in flags.stdout


@pytest.mark.parametrize(
    ("arguments", "environment", "start"),
    [
        (["serve", "--port", "http"], {}, "tidegate: --port: 'http' is not a whole number"),
        (["serve", "--dtyp", "float32"], {}, "tidegate: --dtyp: there is no such flag; did you mean --dtype?"),
        (["serve"], {"TIDEGATE_BLOCK_SIZE": "24"}, "tidegate: TIDEGATE_BLOCK_SIZE: 24 is not a power of two"),
        (["serve", "--kv-cache-memory=1GiB", "--num-kv-blocks=5"], {}, "tidegate: --num-kv-blocks: "),
        (["server"], {}, "tidegate: server: there is no such command"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(
    arguments: list[str], environment: dict[str, str], start: str
) -> None:
    result = run_tidegate(*arguments, **environment)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith(start)
    assert result.stderr.count("\n") == 1


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for flag, other in (("--port", "--ops-port"), ("--ops-port", "--port")):
            result = run_tidegate("serve", "--host=127.0.0.1", f"{flag}={port}", f"{other}=0", "--log-level=error")
            assert result.returncode == 2
            assert result.stderr.startswith(f"tidegate: {flag}: 127.0.0.1:{port} cannot be used")
            assert result.stderr.count("\n") == 1


def test_a_missing_model_is_one_line_and_a_termination_message(tmp_path: Path) -> None:
    message = tmp_path / "termination-log"
    message.touch()  # Kubernetes makes the file
    result = run_tidegate(
        "serve", "--host=127.0.0.1", "--port=0", "--ops-port=0", "--log-level=error",
        f"--model={tmp_path}/nothing", f"--termination-message-path={message}",
    )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.startswith("tidegate: ModelNotFound: ")
    assert result.stderr.count("\n") == 1
    left = json.loads(message.read_text())
    assert left["code"] == "ModelNotFound"
    assert "nothing" in left["message"]


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("arguments", "environment", "start"),
    [
        pytest.param(["--max-model-len=999999"], {}, "--max-model-len: 999999 tokens are more than", id="a flag"),
        pytest.param(["--kv-cache-memory-bytes=1KiB"], {}, "--kv-cache-memory-bytes: ", id="its other name"),
        pytest.param(
            ["--num-kv-blocks=4"], {"TIDEGATE_MAX_MODEL_LEN": "512"}, "TIDEGATE_MAX_MODEL_LEN: ", id="a variable"
        ),
    ],
)
def test_a_setting_that_the_model_shows_to_be_wrong_is_one_line_and_exit_code_2(
    arguments: list[str], environment: dict[str, str], start: str, tmp_path: Path
) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    result = run_tidegate(
        "serve", "--host=127.0.0.1", "--port=0", "--ops-port=0", "--log-level=error",
        f"--termination-message-path={message}", *arguments, **environment,
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr.startswith(f"tidegate: {start}")
    assert result.stderr.count("\n") == 1
    assert json.loads(message.read_text())["code"] == "InvalidSetting"


STOPPED_BEFORE_IMPORTS = """
import os, signal, sys
from tidegate_server import settings
from tidegate_server.__main__ import main

read_settings = settings.read_settings

def read_settings_and_stop(*given):
    os.kill(os.getpid(), signal.SIGTERM)
    return read_settings(*given)

settings.read_settings = read_settings_and_stop
sys.exit(main(["serve", "--host=127.0.0.1", "--port=0", "--ops-port=0"]))
"""


def test_a_stop_before_the_server_is_imported_is_well() -> None:
    result = subprocess.run(
        [sys.executable, "-c", STOPPED_BEFORE_IMPORTS],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=CLEAN_ENVIRONMENT,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "stopped_while_starting" in result.stderr


def test_a_stop_while_starting_is_well() -> None:
    with RunningServer() as server:
        server.event("loading")
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    """One server for the tests that leave it as it is, and a last one that stops it."""
    patient = "--drain-timeout=1h"  # on a busy machine the last stream takes minutes
    with RunningServer("--max-model-len=512", "--num-kv-blocks=128", "--drain-notice=0", patient) as server:
        server.ready()
        yield server


@pytest.mark.real_model
def test_the_built_in_model_answers_the_official_client(served: RunningServer) -> None:
    url, ops = served.ready()
    assert httpx.get(f"{ops}/readyz", timeout=30).status_code == 200
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=TIMEOUT_S) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        reply = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=8)
        text = reply.choices[0].message.content
        assert text is not None
        assert "Paris" in text
        stream = client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=8, stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text


@pytest.mark.real_model
def test_the_ops_port_tells_the_work_done(served: RunningServer) -> None:
    _, ops = served.ready()
    load = httpx.get(f"{ops}/load", timeout=30).json()
    assert (load["model"], load["state"], load["kv_blocks_total"]) == (MODEL, "ready", 128)
    kernels = load["kernels"]
    assert kernels.startswith("cpu-") if load_library() is not None else kernels == "torch"
    assert served.event("ready")["kernels"] == kernels
    # The kernels in C promise it; torch's on this machine may or may not keep it.
    assert load["exact"] is True or kernels == "torch"
    assert (load["inexact_ops"] == []) is load["exact"]
    probed = served.event("exactness_probed")
    assert (probed["exact"], probed["kernels"]) == (load["exact"], kernels)
    metrics = httpx.get(f"{ops}/metrics", timeout=30).text
    verdict = "exact" if load["exact"] else "inexact"
    assert f'tidegate_exactness{{model_name="{MODEL}",verdict="{verdict}"}} 1.0' in metrics
    cache_dtype = "bfloat16" if load_library() is not None else "float32"
    assert f'vllm:cache_config_info{{block_size="16",cache_dtype="{cache_dtype}"' in metrics
    assert "nan" not in metrics.lower()


@pytest.mark.real_model
def test_a_prompt_past_the_context_of_the_real_model_is_refused(served: RunningServer) -> None:
    url, _ = served.ready()
    reply = httpx.post(f"{url}/v1/completions", json={"prompt": [5] * 512}, timeout=30)
    assert reply.status_code == 400
    assert "512" in reply.json()["error"]["message"]


@pytest.mark.real_model
def test_sigterm_lets_a_running_stream_finish_and_refuses_new_requests(served: RunningServer) -> None:
    url, ops = served.ready()
    body = {"prompt": "Once upon a time", "max_tokens": 24, "ignore_eos": True, "stream": True, "temperature": 0}
    with (
        httpx.Client(base_url=url, timeout=TIMEOUT_S) as http,
        http.stream("POST", "/v1/completions", json=body) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)  # it runs
        served.signal(signal.SIGTERM)
        served.event("draining")
        served.signal(signal.SIGTERM)  # a second one changes nothing
        assert wait_for_status(f"{ops}/readyz", 503).text.startswith("draining")
        assert httpx.get(f"{ops}/livez", timeout=30).status_code == 200
        refused = httpx.post(f"{url}/v1/completions", json={"prompt": "a"}, timeout=30)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        events = [line.removeprefix("data: ") for line in lines if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
    assert served.exit_code() == 0
    served.event("drained")
    assert served.noise == []


@pytest.mark.real_model
def test_a_killed_engine_ends_streams_with_an_error_and_the_process_with_code_1(tmp_path: Path) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    arguments = ("--max-model-len=512", "--num-kv-blocks=128")
    with RunningServer(*arguments, termination_message=message) as server:
        url, _ = server.ready()
        body = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with httpx.Client(base_url=url, timeout=TIMEOUT_S) as http:  # noqa: SIM117 - the order is the test's story
            with http.stream("POST", "/v1/completions", json=body) as stream:
                lines = stream.iter_lines()
                next(lines)
                os.kill(server.engine_pid(), signal.SIGKILL)
                events = [line.removeprefix("data: ") for line in lines if line]
        assert "SIGKILL" in json.loads(events[-1])["error"]["message"]
        assert server.exit_code() == 1
        assert "SIGKILL" in server.event("engine_lost")["reason"]
        assert json.loads(message.read_text())["code"] == "EngineCrashed"
