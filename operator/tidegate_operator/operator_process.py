"""One operator process from start to end: stand by, lead, stop; everything is wired together here."""

import asyncio
import signal
import time
from datetime import UTC, datetime

import kopf
import structlog

from tidegate_operator.cluster import LEASE, ObjectRef
from tidegate_operator.errors import LeaseLost
from tidegate_operator.handlers import build_kopf_settings, build_registry
from tidegate_operator.health import Health, serve_health
from tidegate_operator.kubernetes_cluster import KubernetesCluster, load_configuration
from tidegate_operator.lease import Election, keep_leading, wait_to_lead
from tidegate_operator.load import HttpLoadReader
from tidegate_operator.metrics import OperatorMetrics
from tidegate_operator.reconciler import Reconciler
from tidegate_operator.resync import keep_resyncing, wait_for_resource_definition
from tidegate_operator.settings import OperatorSettings, version
from tidegate_operator.watched import Watched
from tidegate_operator.worker import Worker

log = structlog.get_logger()


async def run_operator(settings: OperatorSettings) -> int:
    """Serve until a signal comes or the lease is lost; returns the exit status."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    cluster = KubernetesCluster(await load_configuration())
    load, metrics, watched = HttpLoadReader(), OperatorMetrics(), Watched()
    reconciler = Reconciler(cluster, load, settings.platform, lambda: datetime.now(UTC), settings.identity, metrics)
    worker = Worker(reconciler.reconcile, metrics, settings.workers)
    health = Health(worker, watched, time.monotonic)
    lease = ObjectRef(LEASE, settings.lease_namespace, settings.lease_name)
    election = Election(cluster, lease, settings.identity, time.monotonic)
    log.info("operator_started", version=version(), identity=settings.identity, server_image=settings.server_image)
    runner = await serve_health(health, metrics, settings.ops_port)
    try:
        if not await wait_to_lead(election, stop):
            return 0
        health.is_leading = True
        worker.beat_at = time.monotonic()
        metrics.is_leader.set(1)
        return await _lead(settings, cluster, election, worker, watched, stop)
    finally:
        await election.release()
        await runner.cleanup()
        await load.close()
        await cluster.close()
        log.info("operator_ended", next="another replica leads")


async def _lead(
    settings: OperatorSettings,
    cluster: KubernetesCluster,
    election: Election,
    worker: Worker,
    watched: Watched,
    stop: asyncio.Event,
) -> int:
    """Work until one of the parts ends; then end them all, before the lease is given back."""
    renewal = asyncio.create_task(keep_leading(election, stop), name="lease")
    work = asyncio.create_task(_work(settings, cluster, worker, watched, stop), name="work")
    done, _ = await asyncio.wait({renewal, work}, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    for task in (work, renewal):
        task.cancel()
    await asyncio.gather(work, renewal, return_exceptions=True)
    for task in done:
        error = task.exception()
        if isinstance(error, LeaseLost):
            log.error("lease_lost", error=str(error), next="this process ends and stands by again")
            return 1
        if error is not None:
            raise error
    return 0


async def _work(
    settings: OperatorSettings, cluster: KubernetesCluster, worker: Worker, watched: Watched, stop: asyncio.Event
) -> None:
    namespaces = settings.namespaces
    await wait_for_resource_definition(cluster, namespaces)
    watching = kopf.operator(
        registry=build_registry(worker.trigger, watched),
        settings=build_kopf_settings(),
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stop,
    )
    tasks = [
        asyncio.create_task(worker.run(), name="worker"),
        asyncio.create_task(keep_resyncing(cluster, namespaces, worker.trigger, watched), name="resync"),
        asyncio.create_task(watching, name="watches"),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
