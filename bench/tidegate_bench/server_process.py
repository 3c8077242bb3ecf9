"""A server under test as a running process: start, wait until it serves, watch its memory, stop."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from pathlib import Path
from types import TracebackType

import aiohttp

from tidegate_bench.completions import CompletionFailed, stream_completion
from tidegate_bench.launch import SERVED_NAME, BenchError, Launch, Speaks
from tidegate_bench.pipe_target import PipeTarget
from tidegate_bench.process_tree import ProcessTree
from tidegate_bench.target import HttpTarget, Target
from tidegate_bench.workloads import FIRST_TOKEN_ID, PlannedRequest

POLL_INTERVAL_S = 0.2
MEMORY_INTERVAL_S = 1.0
STOP_TIMEOUT_S = 30.0  # for the root to drain and end its children
ORPHAN_TIMEOUT_S = 5.0  # for children that it left behind
LOG_TAIL_CHARS = 2000


class ServerProcess:
    """Use it as an async context: inside, the server is ready; afterwards, it and all its children are gone."""

    def __init__(self, launch: Launch, port: int, log: Path) -> None:
        self._launch = launch
        self._port = port
        self._log = log
        self._watch: asyncio.Task[None] | None = None
        self.ready_s = 0.0
        """Start of the process to the end of its first completion."""
        self.kernels = ""
        """What the server computes with; empty where it does not tell."""
        self.tree: ProcessTree
        self.target: Target

    async def __aenter__(self) -> "ServerProcess":
        pipes = self._launch.speaks is Speaks.PIPES
        self._log.parent.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._launch.argv,
                env={**os.environ, **self._launch.env},
                stdin=asyncio.subprocess.PIPE if pipes else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if pipes else log,
                stderr=log,
                limit=1 << 30,  # a runner's records come as one line
                start_new_session=True,  # Ctrl-C reaches the benchmark alone, which then stops its servers in order
            )
        self.tree = ProcessTree(self._process.pid)
        self._watch = asyncio.create_task(self._watch_memory())
        try:
            await asyncio.wait_for(self._wait_ready(), self._launch.ready_timeout_s)
            self.ready_s = time.perf_counter() - start
            self.tree.rss_bytes()  # the watch may not have looked yet
            if self._launch.load_url is not None:
                self.kernels = await _kernels(self._launch.load_url)
        except TimeoutError:
            await self._stop()
            raise BenchError(
                f"not ready after {self._launch.ready_timeout_s:.0f} s; {self._log} ends with:\n{self._log_tail()}"
            ) from None
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _wait_ready(self) -> None:
        if self._launch.speaks is Speaks.PIPES:
            self.target = await PipeTarget.connect(self._process, self._died)
            return
        base_url = f"http://127.0.0.1:{self._port}"
        self.target = HttpTarget(base_url, SERVED_NAME)
        timeout = aiohttp.ClientTimeout(total=self._launch.ready_timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not await _serves(session, base_url):
                if self._process.returncode is not None:
                    raise self._died()
                await asyncio.sleep(POLL_INTERVAL_S)

    def _died(self) -> BenchError:
        return BenchError(
            f"the server ended with exit status {self._process.returncode} before it was ready; "
            f"{self._log} ends with:\n{self._log_tail()}"
        )

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-LOG_TAIL_CHARS:]

    async def _watch_memory(self) -> None:
        while True:
            self.tree.rss_bytes()
            await asyncio.sleep(MEMORY_INTERVAL_S)

    async def _stop(self) -> None:
        """SIGTERM to the root, which ends its own children; then SIGTERM and at last SIGKILL to whoever is left."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        self.tree.living()  # the children are known while the root can still be asked for them
        if self._process.returncode is None:
            self._process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
        self._signal_living(signal.SIGTERM)
        deadline = time.monotonic() + ORPHAN_TIMEOUT_S
        while self.tree.living() and time.monotonic() < deadline:
            await asyncio.sleep(POLL_INTERVAL_S)
        self._signal_living(signal.SIGKILL)
        await self._process.wait()

    def _signal_living(self, number: signal.Signals) -> None:
        for stat in self.tree.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(stat.pid, number)


async def _serves(session: aiohttp.ClientSession, base_url: str) -> bool:
    """Whether a completion of one token succeeds: the same meaning of ready for every server."""
    probe = PlannedRequest(index=0, arrival_s=0.0, prompt_token_ids=(FIRST_TOKEN_ID,) * 4, num_output_tokens=1)
    record = await stream_completion(session, base_url, SERVED_NAME, probe, time.perf_counter)
    if record.error is not None and record.error.startswith(f"{CompletionFailed.__name__}: HTTP 4"):
        raise BenchError(f"the server refuses completions: {record.error}")
    return record.error is None


async def _kernels(load_url: str) -> str:
    try:
        async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(load_url) as response:
            return str((await response.json())["kernels"])
    except (aiohttp.ClientError, ValueError, LookupError, TypeError) as failure:
        raise BenchError(f"{load_url}: names no kernels ({failure!r})") from None


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
