"""One pass for one resource: observe, plan, apply, tell."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import structlog

from tidegate_operator.apply import apply, write_status
from tidegate_operator.autoscale import TICK
from tidegate_operator.cluster import INFERENCE_SERVICE, Cluster, Key, Manifest, ObjectRef, ref_of
from tidegate_operator.demand import Sample, take_sample
from tidegate_operator.errors import InvalidResource, Refused
from tidegate_operator.events import tell
from tidegate_operator.load import LoadReader
from tidegate_operator.metrics import OperatorMetrics
from tidegate_operator.observe import observe
from tidegate_operator.observed import Observed
from tidegate_operator.plan import SCALED_DOWN, SCALED_UP, Because, plan, plan_after_refusal
from tidegate_operator.platform import Platform
from tidegate_operator.resource import InferenceService, decode_resource
from tidegate_operator.resource_status import decode_status
from tidegate_operator.status import invalid_status

log = structlog.get_logger()

RECHECK_REFUSED: Final = timedelta(minutes=1)  # a quota or a policy may change without an event that we see
SCALED_UP_OR_DOWN: Final = {SCALED_UP: "up", SCALED_DOWN: "down"}
SAMPLE_SLACK: Final = timedelta(seconds=1)  # a tick that comes a little early still takes its sample


@dataclass(slots=True)
class History:
    """Samples of one resource; a later one of the same name starts without any."""

    uid: str
    samples: list[Sample] = field(default_factory=list)


@dataclass(slots=True)
class Reconciler:
    """Holds nothing that matters but the last minutes' samples; two resources never share anything."""

    cluster: Cluster
    load: LoadReader
    platform: Platform
    clock: Callable[[], datetime]
    reporter: str  # name of this operator pod, for Events
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)
    _histories: dict[Key, History] = field(default_factory=dict)

    async def reconcile(self, key: Key) -> timedelta | None:
        """Close the gap for one resource; returns when to look again, None when a trigger will tell.

        Raises:
            ClusterError: the API server could not be asked; nothing is lost by trying again.
        """
        manifest = await self.cluster.get(ObjectRef(INFERENCE_SERVICE, key.namespace, key.name))
        if manifest is None or "deletionTimestamp" in manifest["metadata"]:
            self._histories.pop(key, None)  # garbage collection removes the children: they name their owner
            return None
        try:
            resource = decode_resource(manifest)
        except InvalidResource as error:
            await self._say_invalid(manifest, error)
            return None
        observed = await self._with_samples(resource, await observe(self.cluster, resource, self.clock()))
        desired = plan(resource, observed, self.platform, self.clock())
        try:
            await apply(self.cluster, resource, desired)
        except Refused as error:
            return await self._say_refused(resource, observed, error)
        await tell(self.cluster, resource, desired.because, self.clock(), self.reporter)
        self._count(desired.because)
        return desired.recheck_after

    async def _with_samples(self, resource: InferenceService, observed: Observed) -> Observed:
        """Add a sample of demand if one is due, and forget those that no window reaches."""
        policy = resource.spec.autoscaling
        if policy is None:
            self._histories.pop(resource.key, None)
            return observed
        history = self._histories.get(resource.key)
        if history is None or history.uid != resource.uid:
            history = self._histories[resource.key] = History(resource.uid)
        samples = history.samples
        now = self.clock()
        if not samples or now - samples[-1].at >= TICK - SAMPLE_SLACK:
            reports = await self.load.read(observed.pods)
            sample = take_sample(observed.pods, reports, now)
            if sample is not None:
                samples.append(sample)
        reach = timedelta(seconds=max(policy.windows.up_seconds, policy.windows.down_seconds)) + 4 * TICK
        samples[:] = [sample for sample in samples if now - sample.at <= reach]
        return replace(observed, samples=tuple(samples))

    def _count(self, because: tuple[Because, ...]) -> None:
        for decision in because:
            if decision.reason in SCALED_UP_OR_DOWN:
                self.metrics.scalings.labels(SCALED_UP_OR_DOWN[decision.reason]).inc()

    async def _say_refused(self, resource: InferenceService, observed: Observed, error: Refused) -> timedelta:
        status, because = plan_after_refusal(resource, observed, self.platform, error, self.clock())
        log.warning("apply_refused", resource=str(resource.key), error=str(error), next="again in a minute")
        await write_status(self.cluster, resource.ref, resource.status, status)
        await tell(self.cluster, resource, because, self.clock(), self.reporter)
        return RECHECK_REFUSED

    async def _say_invalid(self, manifest: Manifest, error: InvalidResource) -> None:
        before, ref = decode_status(manifest), ref_of(manifest)
        status = invalid_status(before, manifest["metadata"].get("generation", 0), error, self.clock())
        log.warning("resource_invalid", resource=str(ref), error=str(error), next="when its spec changes")
        await write_status(self.cluster, ref, before, status)
