"""Who leads: one of the operator's replicas holds a Lease and renews it; another takes it over when it stops.

Whether the lease has run out is judged by this process's own clock, from when it last saw the lease change: clocks of
two nodes need not agree. Times: a dead leader is replaced after at most LEASE_S plus one RETRY_S, 12 seconds; one that
ends in order gives the lease back and is replaced within RETRY_S.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import structlog

from tidegate_operator.cluster import LEASE, Cluster, Manifest, ObjectRef
from tidegate_operator.errors import ClusterError, LeaseLost

log = structlog.get_logger()

LEASE_S: Final = 10
RETRY_S: Final = 2.0
RENEW_DEADLINE_S: Final = 7.0  # the leader gives up before a standby may take over


@dataclass(slots=True)
class Election:
    """This process's side of the lease. Errors of the API server count as "not this time"."""

    cluster: Cluster
    ref: ObjectRef
    identity: str
    monotonic: Callable[[], float]
    retry_s: float = RETRY_S
    _seen: tuple[str, str] | None = None  # holder and renewTime as last seen
    _seen_at: float = 0.0
    _held: bool = field(default=False)

    async def acquire_or_renew(self) -> bool:
        """Try once; True when this process leads for the next LEASE_S seconds."""
        try:
            lease = await self.cluster.get(self.ref)
            if lease is None:
                await self.cluster.create(self._lease(transitions=0, acquired=_now()))
                return self._won()
            spec = lease.get("spec") or {}
            holder = spec.get("holderIdentity") or ""
            if holder != self.identity and not self._has_run_out(holder, spec):
                self._held = False
                return False
            # The resourceVersion makes the API server refuse all but one of those who try now.
            await self.cluster.replace(self._renewed(lease, holder))
            return self._won()
        except ClusterError as error:
            log.warning("lease_not_reached", lease=str(self.ref), error=str(error), next=f"again in {self.retry_s:g} s")
            return False

    async def release(self) -> None:
        """Give the lease back, so that the next leader need not wait for it to run out."""
        if not self._held:
            return
        self._held = False
        try:
            lease = await self.cluster.get(self.ref)
            if lease is not None and lease["spec"].get("holderIdentity") == self.identity:
                lease["spec"]["holderIdentity"] = ""
                await self.cluster.replace(lease)
        except ClusterError as error:
            log.warning("lease_not_released", lease=str(self.ref), error=str(error), next=f"it runs out in {LEASE_S} s")

    def _won(self) -> bool:
        if not self._held:
            log.info("lease_acquired", lease=str(self.ref), identity=self.identity)
        self._held = True
        return True

    def _has_run_out(self, holder: str, spec: Manifest) -> bool:
        if not holder:
            return True
        seen = (holder, spec.get("renewTime") or "")
        if seen != self._seen:
            self._seen, self._seen_at = seen, self.monotonic()
            return False
        lasts_s: int = spec.get("leaseDurationSeconds") or LEASE_S
        return self.monotonic() - self._seen_at > lasts_s

    def _renewed(self, lease: Manifest, holder: str) -> Manifest:
        spec = lease.get("spec") or {}
        is_change = holder != self.identity
        transitions = spec.get("leaseTransitions", 0) + (1 if is_change else 0)
        acquired = _now() if is_change else spec.get("acquireTime") or _now()
        return lease | {"spec": self._lease(transitions=transitions, acquired=acquired)["spec"]}

    def _lease(self, *, transitions: int, acquired: str) -> Manifest:
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": {"name": self.ref.name, "namespace": self.ref.namespace},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": LEASE_S,
                "acquireTime": acquired,
                "renewTime": _now(),
                "leaseTransitions": transitions,
            },
        }


async def wait_to_lead(election: Election, stop: asyncio.Event) -> bool:
    """Return True once this process leads, False when it should stop before that."""
    log.info("lease_awaited", lease=str(election.ref), identity=election.identity)
    while not stop.is_set():
        if await election.acquire_or_renew():
            return True
        await _sleep(stop, election.retry_s)
    return False


async def keep_leading(election: Election, stop: asyncio.Event) -> None:
    """Renew until told to stop.

    Raises:
        LeaseLost: somebody else leads, or may soon; this process must do nothing more.
    """
    renewed_at = election.monotonic()
    while not stop.is_set():
        await _sleep(stop, election.retry_s)
        try:
            async with asyncio.timeout(RENEW_DEADLINE_S):
                renewed = await election.acquire_or_renew()
        except TimeoutError:
            renewed = False
        if renewed:
            renewed_at = election.monotonic()
        elif election.monotonic() - renewed_at > RENEW_DEADLINE_S:
            raise LeaseLost(
                f"{election.ref} could not be renewed for {RENEW_DEADLINE_S:g} s; another replica takes over"
            )


async def _sleep(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
