"""Liveness, readiness and metrics over HTTP: alive means doing its work, not merely running."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from tidegate_contract import labels
from tidegate_operator.errors import InvalidSetting
from tidegate_operator.metrics import OperatorMetrics
from tidegate_operator.watched import SILENCE_LIMIT_S, Watched
from tidegate_operator.worker import Worker

BEAT_LIMIT_S: Final = 30.0  # the loop turns every five seconds when idle
OVERDUE_LIMIT_S: Final = 300.0  # longer than any one pass may take


@dataclass(slots=True)
class Health:
    worker: Worker
    watched: Watched
    monotonic: Callable[[], float]
    is_leading: bool = False

    def problem(self) -> str | None:
        """Why this process should be started again; None when it need not. A standby has nothing to fail at."""
        if not self.is_leading:
            return None
        now = self.monotonic()
        due = self.worker.queue.next_due()
        if due is not None and now - due > OVERDUE_LIMIT_S:
            return f"a resource has waited {now - due:.0f} s to be looked at"
        is_idle = due is None or due > now
        if is_idle and now - self.worker.beat_at > BEAT_LIMIT_S and len(self.worker.queue) < self.worker.num_workers:
            return f"the loop has not turned for {now - self.worker.beat_at:.0f} s"
        silence_s = self.watched.silent_for(now)
        if silence_s > SILENCE_LIMIT_S:
            return f"the watch has missed a change for {silence_s:.0f} s"
        return None


async def serve_health(health: Health, metrics: OperatorMetrics, port: int) -> web.AppRunner:
    """Start to listen; the caller cleans the runner up.

    Raises:
        InvalidSetting: the port cannot be had.
    """

    async def alive(_: web.Request) -> web.Response:
        problem = health.problem()
        return web.Response(status=200 if problem is None else 503, text=problem or "ok")

    async def ready(_: web.Request) -> web.Response:
        # A standby is ready: it is what a rollout of the operator waits for.
        return web.Response(text="leading" if health.is_leading else "standing by")

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.add_routes(
        [
            web.get(labels.STARTUP_PATH, ready),
            web.get(labels.READY_PATH, ready),
            web.get(labels.LIVE_PATH, alive),
            web.get(labels.METRICS_PATH, scrape),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
    except OSError as error:
        await runner.cleanup()
        raise InvalidSetting("--ops-port", f"cannot listen: {error.strerror}") from error
    return runner
