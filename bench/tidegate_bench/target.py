"""What a workload is run against: an HTTP endpoint, or a library behind a runner's pipes."""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

import aiohttp

from tidegate_bench.completions import stream_completion
from tidegate_bench.launch import BenchError
from tidegate_bench.record import RequestRecord
from tidegate_bench.workloads import PlannedRequest, Workload

REQUEST_TIMEOUT_S = 1800.0


class Target(Protocol):
    """Something that serves requests."""

    async def run(self, workload: Workload) -> Sequence[RequestRecord]:
        """Serve every request at its time of arrival; one record each, in the workload's order."""
        ...


class HttpTarget:
    """An OpenAI-compatible endpoint."""

    def __init__(self, base_url: str, model: str, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """
        Args:
            base_url: with or without `/v1`.
            model: the name to ask for.
            timeout_s: of one request; a later answer counts as failed.
        """
        self._base_url = base_url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._timeout_s = timeout_s

    async def run(self, workload: Workload) -> Sequence[RequestRecord]:
        # No limit on connections: a load generator that queues would measure itself.
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            start = time.perf_counter()

            def now_s() -> float:
                return time.perf_counter() - start

            async def serve(request: PlannedRequest) -> RequestRecord:
                await asyncio.sleep(max(0.0, request.arrival_s - now_s()))
                return await stream_completion(session, self._base_url, self._model, request, now_s)

            return await asyncio.gather(*(serve(request) for request in workload.requests))


async def first_model(base_url: str) -> str:
    """The name of the model that an endpoint lists first.

    Raises:
        BenchError: no answer, or not one of `/v1/models`.
    """
    url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1/models"
    try:
        async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(url) as response:
            return str((await response.json())["data"][0]["id"])
    except (aiohttp.ClientError, ValueError, LookupError, TypeError) as failure:
        raise BenchError(f"{base_url}: lists no model ({failure!r}); is it an OpenAI-compatible server?") from None
