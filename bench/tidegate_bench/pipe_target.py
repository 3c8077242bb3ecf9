"""A library under test, behind the pipes of its runner: one workload a line to it, its records as one line back."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from tidegate_bench.launch import BenchError
from tidegate_bench.record import RequestRecord
from tidegate_bench.workloads import Workload


class PipeTarget:
    """Speaks to a runner such as `peers/openvino_runner.py`, which keeps the time itself."""

    def __init__(self, process: asyncio.subprocess.Process, died: Callable[[], BenchError]) -> None:
        self._process = process
        self._died = died

    @classmethod
    async def connect(cls, process: asyncio.subprocess.Process, died: Callable[[], BenchError]) -> "PipeTarget":
        """Wait for the runner's first line, which says that it is ready."""
        target = cls(process, died)
        await target._read()
        return target

    async def run(self, workload: Workload) -> Sequence[RequestRecord]:
        assert self._process.stdin is not None
        message = json.dumps({"requests": [asdict(request) for request in workload.requests]})
        self._process.stdin.write(message.encode() + b"\n")
        await self._process.stdin.drain()
        answer = await self._read()
        return [
            RequestRecord(**{**record, "event_times_s": tuple(record["event_times_s"])}) for record in answer["records"]
        ]

    async def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            await self._process.wait()
            raise self._died()
        answer: dict[str, Any] = json.loads(line)
        return answer
