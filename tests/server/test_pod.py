"""One pod from start to end in this process, with a model that counts in a real engine process."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.server.engine.counting_runner import DEADLY_TOKEN, STUCK_TOKEN, CountingRunner, load_nothing
from tidegate_server import pod as pod_module
from tidegate_server.api.lifecycle import Lifecycle
from tidegate_server.engine.exactness import Difference, Exactness, settle_exactness
from tidegate_server.engine.launch import RunnerFactory
from tidegate_server.engine.progress_watch import ProgressWatch
from tidegate_server.engine.recording import read_recording
from tidegate_server.errors import InvalidSetting, StartError
from tidegate_server.listeners import bind
from tidegate_server.model_source import ModelFiles
from tidegate_server.pod import Listeners, Pod
from tidegate_server.settings import EngineSettings, ExactMode, ServerSettings

TIMEOUT_S = 120
LONG_S = 3600.0

ENDLESS = {"prompt": [1, 2, 3], "max_tokens": 10_000, "ignore_eos": True, "stream": True}


def load_endless_runner(settings: EngineSettings, files: ModelFiles) -> CountingRunner:
    return CountingRunner(num_kv_blocks=settings.num_kv_blocks or 64, block_size=16, max_model_len=20_000)


class Running:
    """A pod that runs in this event loop."""

    def __init__(
        self, settings: ServerSettings, load_runner: RunnerFactory, early_signals: Sequence[signal.Signals]
    ) -> None:
        listeners = Listeners(api=bind("127.0.0.1", 0, "--port"), ops=bind("127.0.0.1", 0, "--ops-port"))
        self.api = f"http://127.0.0.1:{listeners.api.getsockname()[1]}"
        self.ops = f"http://127.0.0.1:{listeners.ops.getsockname()[1]}"
        self.http = httpx.AsyncClient(timeout=TIMEOUT_S)
        self.exit = asyncio.create_task(Pod(settings, listeners, load_runner).run(early_signals))

    async def status(self, path: str, status: int) -> httpx.Response:
        """Ask the ops port until it answers so."""
        while True:
            reply = await self.http.get(self.ops + path)
            if reply.status_code == status:
                return reply
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[AsyncIterator[str]]:
        """The lines of an endless stream, after its first event."""
        async with self.http.stream("POST", f"{self.api}/v1/completions", json=ENDLESS) as reply:
            assert reply.status_code == 200
            lines = reply.aiter_lines()
            await anext(lines)
            yield lines


def run(
    scenario: Callable[[Running], Awaitable[None]],
    load_runner: RunnerFactory = load_endless_runner,
    *,
    notice_s: float = 0.0,
    timeout_s: float = LONG_S,
    message_path: Path = Path("/nowhere"),
    early_signals: Sequence[signal.Signals] = (),
    record_dir: str | None = None,
) -> int:
    """Start a pod, play the scenario, and give the pod's exit code."""

    async def play() -> int:
        settings = ServerSettings(
            engine=EngineSettings(num_kv_blocks=2000, record_dir=record_dir),
            drain_notice_s=notice_s,
            drain_timeout_s=timeout_s,
            termination_message_path=message_path,
        )
        running = Running(settings, load_runner, early_signals)
        async with running.http:
            try:
                await scenario(running)
                return await running.exit
            finally:
                running.exit.cancel()
                await asyncio.gather(running.exit, return_exceptions=True)

    return asyncio.run(asyncio.wait_for(play(), TIMEOUT_S))


async def last_of(lines: AsyncIterator[str]) -> str:
    last = ""
    async for line in lines:
        last = line or last
    return last


def engine_pid() -> int:
    """Of the one child of this process."""
    (pid,) = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return int(pid)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def load_inexact_runner(settings: EngineSettings, files: ModelFiles) -> CountingRunner:
    return CountingRunner(exactness=Exactness((Difference("down 8x4", "a row alone against the same among 64"),)))


def load_what_must_be_exact(settings: EngineSettings, files: ModelFiles) -> CountingRunner:
    differences = (Difference("down 8x4", "a row alone against the same among 64"),)
    return CountingRunner(exactness=settle_exactness(ExactMode.REQUIRE, lambda: differences, "torch"))


def test_a_pod_that_must_be_exact_and_is_not_says_so_and_stops() -> None:
    async def scenario(pod: Running) -> None:
        await asyncio.wait({pod.exit})

    with pytest.raises(InvalidSetting, match=r"^--exact: require .*down 8x4 \(a row alone") as stopped:
        run(scenario, load_what_must_be_exact)
    assert stopped.value.flag == "--exact"


def test_what_the_probe_found_reaches_the_load_report_and_the_metrics() -> None:
    async def scenario(pod: Running) -> None:
        await pod.status("/readyz", 200)
        load = (await pod.http.get(f"{pod.ops}/load")).json()
        assert (load["exact"], load["inexact_ops"], load["kernels"]) == (False, ["down 8x4"], "torch")
        metrics = (await pod.http.get(f"{pod.ops}/metrics")).text
        assert 'verdict="inexact"} 1.0' in metrics
        interrupt()

    assert run(scenario, load_inexact_runner) == 0


def test_a_pod_starts_answers_and_stops_when_told() -> None:
    async def scenario(pod: Running) -> None:
        await pod.status("/readyz", 200)
        reply = await pod.http.post(f"{pod.api}/v1/completions", json={"prompt": [5, 6], "max_tokens": 3})
        assert reply.json()["usage"]["completion_tokens"] == 3
        load = (await pod.http.get(f"{pod.ops}/load")).json()
        assert (load["state"], load["num_requests_total"], load["kv_blocks_total"]) == ("ready", 1, 2000)
        assert (await pod.http.post(f"{pod.ops}/audit")).status_code == 202
        assert (await pod.http.post(f"{pod.ops}/drain")).json()["state"] == "draining"

    assert run(scenario) == 0


def load_lowered_runner(settings: EngineSettings, files: ModelFiles) -> CountingRunner:
    return CountingRunner(num_kv_blocks=4, block_size=16, max_model_len=64, lowered_from=8192)


def test_a_prompt_past_what_the_cache_left_of_the_context_hears_of_the_cache() -> None:
    async def scenario(pod: Running) -> None:
        await pod.status("/readyz", 200)
        refused = await pod.http.post(f"{pod.api}/v1/completions", json={"prompt": [5] * 64})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "this server's KV cache holds 64 tokens" in error["message"]
        (card,) = (await pod.http.get(f"{pod.api}/v1/models")).json()["data"]
        assert card["max_model_len"] == 64
        interrupt()

    assert run(scenario, load_lowered_runner) == 0


def test_until_the_model_is_there_probes_and_the_api_say_so() -> None:
    async def scenario(pod: Running) -> None:
        assert (await pod.status("/startupz", 503)).text.startswith("starting")
        assert (await pod.http.get(f"{pod.ops}/livez")).status_code == 200
        metrics = await pod.http.get(f"{pod.ops}/metrics")
        assert 'tidegate_server_state{model_name="smollm2-135m-instruct",state="starting"} 1.0' in metrics.text
        await pod.status("/startupz", 200)
        os.kill(os.getpid(), signal.SIGTERM)

    assert run(scenario) == 0


def test_what_a_drain_s_timeout_cuts_off_ends_with_an_error() -> None:
    async def scenario(pod: Running) -> None:
        await pod.status("/readyz", 200)
        async with pod.stream() as lines:
            os.kill(os.getpid(), signal.SIGTERM)
            last = await last_of(lines)
        assert '"error"' in last
        assert "send it again" in last

    assert run(scenario, timeout_s=0.05) == 0


@pytest.mark.parametrize("drains", [False, True], ids=["while it serves", "while it drains"])
def test_a_pod_whose_engine_stands_still_says_so_and_stops(
    drains: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_module, "LOOP_BEAT_S", 0.05)
    monkeypatch.setattr(pod_module, "ProgressWatch", lambda _: ProgressWatch(look_every_s=1.0))  # each a second passes
    monkeypatch.setattr(pod_module, "ENGINE_STOP_TIMEOUT_S", 0.1)
    message = tmp_path / "termination-log"
    message.touch()

    async def scenario(pod: Running) -> None:
        await pod.status("/readyz", 200)
        if drains:
            os.kill(os.getpid(), signal.SIGTERM)
            await pod.status("/readyz", 503)
        stuck = {"prompt": [STUCK_TOKEN], "max_tokens": 4}
        reply = await pod.http.post(f"{pod.api}/v1/completions", json=stuck)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_failed")
        assert "step 1 (requests: 1, tokens: 1) has run for" in reply.text

    assert run(scenario, notice_s=LONG_S, message_path=message) == 1
    told = json.loads(message.read_text())
    assert told["code"] == "EngineStalled"
    assert "step 1 (requests: 1, tokens: 1)" in told["message"]


def test_a_killed_engine_is_told_at_once_on_both_ports_and_ends_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    seen = asyncio.Event()

    async def wait_for_the_test(lifecycle: Lifecycle, within_s: float) -> bool:
        await seen.wait()
        return True

    monkeypatch.setattr(Lifecycle, "emptied", wait_for_the_test)

    async def scenario(pod: Running) -> None:
        await pod.status("/readyz", 200)
        unanswered = asyncio.create_task(pod.http.post(f"{pod.api}/v1/completions", json=ENDLESS | {"stream": False}))
        async with pod.stream() as lines:
            os.kill(engine_pid(), signal.SIGKILL)
            last = await last_of(lines)
        assert '"engine_failed"' in last
        assert "ended by SIGKILL" in last
        assert (await unanswered).status_code == 503
        assert "ended by SIGKILL" in (await pod.status("/livez", 503)).text
        assert (await pod.http.get(f"{pod.ops}/readyz")).status_code == 503
        refused = await pod.http.post(f"{pod.api}/v1/completions", json=ENDLESS)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_failed")
        assert "ended by SIGKILL" in refused.text
        assert int(refused.headers["retry-after"]) > 0
        seen.set()

    assert run(scenario, message_path=message) == 1
    assert json.loads(message.read_text())["code"] == "EngineCrashed"


def test_a_recording_is_written_when_asked_for(tmp_path: Path) -> None:
    async def scenario(pod: Running) -> None:
        await pod.status("/readyz", 200)
        await pod.http.post(f"{pod.api}/v1/completions", json={"prompt": [5, 6], "max_tokens": 3})
        reply = await pod.http.post(f"{pod.ops}/recording")
        assert reply.status_code == 202
        path = Path(reply.json()["path"])
        assert path.parent == tmp_path
        while not path.exists():
            await asyncio.sleep(0.01)
        recording = read_recording(path)
        assert (recording.is_whole, len(recording.steps), recording.head.because) == (True, 3, "asked")
        interrupt()

    assert run(scenario, record_dir=str(tmp_path)) == 0


def test_a_crash_leaves_a_recording(tmp_path: Path) -> None:
    async def scenario(pod: Running) -> None:
        await pod.status("/readyz", 200)
        await pod.http.post(f"{pod.api}/v1/completions", json={"prompt": [DEADLY_TOKEN], "max_tokens": 3})

    assert run(scenario, record_dir=str(tmp_path)) == 1
    (path,) = tmp_path.iterdir()
    recording = read_recording(path)
    assert (recording.head.because, recording.steps[-1].ended_s) == ("crashed", None)


def test_a_folder_for_recordings_that_is_none_stops_the_start(tmp_path: Path) -> None:
    async def scenario(pod: Running) -> None:
        await asyncio.wait({pod.exit})

    with pytest.raises(InvalidSetting, match=r"--record-dir: .*/gone is no folder"):
        run(scenario, record_dir=str(tmp_path / "gone"))


def test_the_timeout_of_a_drain_call_is_kept() -> None:
    async def scenario(pod: Running) -> None:
        await pod.status("/readyz", 200)
        async with pod.stream() as lines:
            drained = await pod.http.post(f"{pod.ops}/drain", json={"timeout_s": 0.05})
            assert drained.json() == {"state": "draining", "num_unfinished": 1}
            assert '"error"' in await last_of(lines)

    assert run(scenario) == 0


def test_a_second_ctrl_c_stops_at_once() -> None:
    async def scenario(pod: Running) -> None:
        await pod.status("/readyz", 200)
        async with pod.stream() as lines:
            interrupt()
            await pod.status("/readyz", 503)
            interrupt()
            assert '"error"' in await last_of(lines)

    assert run(scenario, notice_s=LONG_S) == 130


def test_ctrl_c_without_requests_stops_without_the_notice() -> None:
    async def scenario(pod: Running) -> None:
        await pod.status("/readyz", 200)
        interrupt()

    assert run(scenario, notice_s=LONG_S) == 0


@pytest.mark.parametrize("early", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_from_before_the_event_loop_stops_the_start(early: signal.Signals) -> None:
    async def scenario(pod: Running) -> None:
        await asyncio.wait({pod.exit})

    assert run(scenario, early_signals=[early], notice_s=LONG_S) == 0


@pytest.mark.parametrize("num_iterations", range(5))
def test_a_stop_in_the_very_moment_in_which_loading_ends_is_well(
    num_iterations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Pod._load

    async def load_and_stop(pod: Pod) -> object:
        model = await load(pod)
        stop_in(num_iterations, pod)
        return model

    def stop_in(num_iterations: int, pod: Pod) -> None:
        if num_iterations == 0:
            pod._on_terminate()
        else:
            asyncio.get_running_loop().call_soon(stop_in, num_iterations - 1, pod)

    async def scenario(pod: Running) -> None:
        await asyncio.wait({pod.exit})

    monkeypatch.setattr(Pod, "_load", load_and_stop)
    assert run(scenario) == 0


def test_a_model_that_does_not_load_raises_what_the_engine_said() -> None:
    async def scenario(pod: Running) -> None:
        await asyncio.wait({pod.exit})

    with pytest.raises(StartError, match="no such file") as stopped:
        run(scenario, load_nothing)
    assert stopped.value.code == "ModelNotFound"
