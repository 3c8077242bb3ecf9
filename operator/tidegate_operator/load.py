"""Pods' load reports, read over HTTP from their ops ports."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

import aiohttp
import msgspec
import structlog

from tidegate_contract import labels
from tidegate_contract.admin import LoadReport
from tidegate_operator.pods import Pod

log = structlog.get_logger()

TIMEOUT_S = 2.0  # a pod answers within milliseconds; one that does not is silent for this tick
MAX_CONCURRENT = 64


class LoadReader(Protocol):
    async def read(self, pods: Sequence[Pod]) -> Mapping[str, LoadReport]:
        """What each pod reports, by its name; a pod that does not answer in time is absent."""
        ...


class HttpLoadReader:
    def __init__(self, port: int = labels.OPS_PORT) -> None:
        self._port = port
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def read(self, pods: Sequence[Pod]) -> Mapping[str, LoadReport]:
        asked = [pod for pod in pods if pod.is_serving and pod.ip is not None]
        answers = await asyncio.gather(*(self._read_one(pod) for pod in asked))
        return {pod.name: answer for pod, answer in zip(asked, answers, strict=True) if answer is not None}

    async def _read_one(self, pod: Pod) -> LoadReport | None:
        host = f"[{pod.ip}]" if pod.ip is not None and ":" in pod.ip else pod.ip
        if self._session is None:
            # trust_env stays off: a proxy has no business between the operator and a pod.
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        try:
            async with self._slots, self._session.get(f"http://{host}:{self._port}{labels.LOAD_PATH}") as response:
                response.raise_for_status()
                return msgspec.json.decode(await response.read(), type=LoadReport)
        except (aiohttp.ClientError, OSError, msgspec.MsgspecError) as error:
            log.debug("load_not_read", pod=pod.name, error=f"{type(error).__name__}: {error}", next="again next tick")
            return None
