"""Takes keys from the queue and reconciles them, several side by side, none twice at once."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import structlog

from tidegate_operator.cluster import Key
from tidegate_operator.errors import ClusterError
from tidegate_operator.metrics import OperatorMetrics
from tidegate_operator.queue import KeyQueue

log = structlog.get_logger()

Reconcile = Callable[[Key], Awaitable[timedelta | None]]

GATHER_S: Final = 0.1  # events come in bursts: a rollout step makes a dozen within this
BEAT_S: Final = 5.0  # the loop turns at least this often, so that its age says whether it lives
PASS_TIMEOUT_S: Final = 120.0


@dataclass(slots=True)
class Worker:
    reconcile: Reconcile
    metrics: OperatorMetrics
    num_workers: int = 4
    monotonic: Callable[[], float] = time.monotonic
    queue: KeyQueue = field(default_factory=KeyQueue)
    beat_at: float = 0.0  # when the loop last turned
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def trigger(self, key: Key) -> None:
        """Look at this resource soon."""
        self.queue.put(key, self.monotonic() + GATHER_S)
        self._wake.set()

    async def run(self) -> None:
        slots = asyncio.Semaphore(self.num_workers)
        async with asyncio.TaskGroup() as passes:
            while True:
                await slots.acquire()
                key = await self._next()
                passes.create_task(self._pass(key, slots))

    async def _next(self) -> Key:
        while True:
            self.beat_at = now = self.monotonic()
            self.metrics.queue_depth.set(len(self.queue))
            key = self.queue.take(now)
            if key is not None:
                return key
            due = self.queue.next_due()
            self._wake.clear()
            try:
                async with asyncio.timeout(BEAT_S if due is None else min(BEAT_S, max(0.0, due - now))):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _pass(self, key: Key, slots: asyncio.Semaphore) -> None:
        started = self.monotonic()
        try:
            async with asyncio.timeout(PASS_TIMEOUT_S):
                recheck = await self.reconcile(key)
        except (ClusterError, TimeoutError) as error:
            self._retry(key, "retry", str(error) or "the pass took too long")
        except Exception:
            # A bug must not end the service of all other resources; it is told loudly, and tried again.
            log.exception("reconcile_failed", resource=str(key))
            self._retry(key, "bug", "see the traceback")
        else:
            now = self.monotonic()
            self.queue.done(key, None if recheck is None else now + recheck.total_seconds())
            self.metrics.reconciles.labels("ok").inc()
        finally:
            self.metrics.reconcile_time.observe(self.monotonic() - started)
            slots.release()
            self._wake.set()

    def _retry(self, key: Key, result: str, problem: str) -> None:
        delay = self.queue.failed(key, self.monotonic())
        self.metrics.reconciles.labels(result).inc()
        log.warning("reconcile_retry", resource=str(key), error=problem, next=f"again in {delay:g} s")
