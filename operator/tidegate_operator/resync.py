"""The safety net under the watches: lists all resources now and then, and looks at each."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import structlog

from tidegate_operator.cluster import INFERENCE_SERVICE, Cluster, Key, Manifest
from tidegate_operator.errors import ClusterError, Missing
from tidegate_operator.handlers import Trigger
from tidegate_operator.watched import Watched

log = structlog.get_logger()

COMPARE_EVERY_S: Final = 30.0
RESYNC_EVERY_S: Final = 600.0
RETRY_S: Final = 5.0


async def wait_for_resource_definition(cluster: Cluster, namespaces: Sequence[str]) -> None:
    """Return once the API server knows InferenceServices: kopf would wait for ever without a word."""
    while True:
        try:
            await _list(cluster, namespaces)
            return
        except Missing:
            log.error("crd_missing", next=f"again in {RETRY_S:g} s", hint="tidegate-operator crd | kubectl apply -f -")
        except ClusterError as error:
            log.error("resources_not_listed", error=str(error), next=f"again in {RETRY_S:g} s")
        await asyncio.sleep(RETRY_S)


async def keep_resyncing(cluster: Cluster, namespaces: Sequence[str], trigger: Trigger, watched: Watched) -> None:
    """Trigger what the watch has missed, at once; and everything, every ten minutes."""
    resynced_at = time.monotonic()
    while True:
        await asyncio.sleep(COMPARE_EVERY_S)
        try:
            listed = await _list(cluster, namespaces)
        except ClusterError as error:
            log.warning("resync_failed", error=str(error), next=f"again in {COMPARE_EVERY_S:g} s")
            continue
        behind = watched.compare(listed, time.monotonic())
        is_full = time.monotonic() - resynced_at >= RESYNC_EVERY_S
        for key in [key for key, _ in listed] if is_full else behind:
            trigger(key)
        if is_full:
            resynced_at = time.monotonic()


async def _list(cluster: Cluster, namespaces: Sequence[str]) -> list[tuple[Key, Manifest]]:
    found: list[Manifest] = []
    scopes: Sequence[str | None] = namespaces or [None]
    for namespace in scopes:
        found += await cluster.list(INFERENCE_SERVICE, namespace, {})
    return [(Key(item["metadata"]["namespace"], item["metadata"]["name"]), item) for item in found]
