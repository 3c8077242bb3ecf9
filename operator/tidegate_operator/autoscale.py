"""How many replicas there should be: samples of demand to one decision with its reason.

Everything it remembers comes in: the samples of the last minutes, and the changes made before, which the resource's
status keeps. So a restart of the operator loses only samples, and without samples it never scales down.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from tidegate_operator.demand import Sample
from tidegate_operator.resource import AutoscalingSpec
from tidegate_operator.resource_status import ScalingRecord

TICK: Final = timedelta(seconds=5)
STALE_AFTER: Final = timedelta(seconds=15)  # three ticks without an answer are missing data
DOWN_PER_UP_TARGET: Final = 0.50 / 0.65  # replicas leave below this share of the target at which they come
PANIC_FACTOR: Final = 2  # the short window rules when it asks for this many times the present replicas
QUEUE_FACTOR: Final = 1.5  # most that a long queue multiplies replicas by
BETWEEN_DOWNS: Final = timedelta(seconds=60)
MIN_SAMPLES_TO_GROW: Final = 2  # one odd reading adds no pod
_ROUNDING: Final = 1e-9  # 1.3 / 0.65 must not become 3 replicas


class Reason(StrEnum):
    STEADY = "Steady"
    DEMAND = "Demand"
    PANIC = "DemandSurge"
    QUEUE = "QueueTime"
    LOW_DEMAND = "LowDemand"
    BELOW_MINIMUM = "BelowMinimum"
    ABOVE_MAXIMUM = "AboveMaximum"
    NO_DATA = "NoData"
    COOLING_DOWN = "CoolingDown"  # fewer replicas would do, but not yet


class Limit(StrEnum):
    MAX_REPLICAS = "MaxReplicas"
    MIN_REPLICAS = "MinReplicas"
    STEP = "Step"


@dataclass(frozen=True, slots=True)
class Scene:
    """The pods at this moment, in numbers."""

    replicas: int  # wanted by the Deployment now
    num_ready: int
    num_pending: int  # on their way, and not past their deadline: capacity to come
    is_rolling: bool


@dataclass(frozen=True, slots=True)
class Decision:
    desired: int
    recommended: int  # what demand alone asks for
    reason: Reason
    message: str
    limited_by: Limit | None = None
    latest: Sample | None = None
    average_demand: float = 0.0


def autoscale(
    policy: AutoscalingSpec,
    scene: Scene,
    samples: Sequence[Sample],
    records: Sequence[ScalingRecord],
    now: datetime,
) -> Decision:
    """Decide the replica count; nothing but the arguments matters.

    Args:
        policy: bounds, targets and windows, as the user gave them.
        samples: oldest first; may reach further back than any window.
        records: changes made before, newest first.
    """
    if (bound := _outside_bounds(policy, scene)) is not None:
        return bound
    latest = samples[-1] if samples and now - samples[-1].at <= STALE_AFTER else None
    if latest is None:
        message = f"no serving pod has reported its load within {STALE_AFTER.seconds} s; replicas stay as they are"
        return Decision(scene.replicas, scene.replicas, Reason.NO_DATA, message)
    average = _mean(samples, now - timedelta(seconds=policy.windows.up_seconds), latest)
    recommended = max(1, replicas_for(average, policy.targets.utilization))
    proposals = (
        _by_demand(policy, scene, samples, average, now),
        _by_panic(policy, scene, samples, latest, now),
        _by_queue(policy, scene, samples, records, now),
    )
    up = max((proposal for proposal in proposals if proposal), key=lambda proposal: proposal.replicas, default=None)
    if up is not None:
        return _limited(policy, scene, up, latest, average)
    return _down_or_steady(policy, scene, samples, records, latest, average, recommended, now)


def replicas_for(demand: float, utilization: float) -> int:
    """Replicas that carry this demand at this share of their capacity."""
    return math.ceil(demand / utilization - _ROUNDING)


@dataclass(frozen=True, slots=True)
class _Proposal:
    replicas: int
    reason: Reason
    message: str


def _outside_bounds(policy: AutoscalingSpec, scene: Scene) -> Decision | None:
    if scene.replicas < policy.min_replicas:
        message = f"{scene.replicas} are fewer than minReplicas {policy.min_replicas}"
        return Decision(policy.min_replicas, policy.min_replicas, Reason.BELOW_MINIMUM, message)
    if scene.replicas > policy.max_replicas:
        message = f"{scene.replicas} are more than maxReplicas {policy.max_replicas}"
        return Decision(policy.max_replicas, policy.max_replicas, Reason.ABOVE_MAXIMUM, message)
    return None


def _by_demand(
    policy: AutoscalingSpec, scene: Scene, samples: Sequence[Sample], average: float, now: datetime
) -> _Proposal | None:
    window_s = policy.windows.up_seconds
    wanted = replicas_for(average, policy.targets.utilization)
    if wanted <= scene.replicas or _num_within(samples, now, window_s) < MIN_SAMPLES_TO_GROW:
        return None
    message = (
        f"demand of {average:.2f} replicas over {window_s} s needs {wanted} at {policy.targets.utilization:.0%} each"
    )
    return _Proposal(wanted, Reason.DEMAND, message)


def _by_panic(
    policy: AutoscalingSpec, scene: Scene, samples: Sequence[Sample], latest: Sample, now: datetime
) -> _Proposal | None:
    window_s = min(policy.windows.panic_seconds, policy.windows.up_seconds)
    average = _mean(samples, now - timedelta(seconds=window_s), latest)
    wanted = replicas_for(average, policy.targets.utilization)
    if wanted < PANIC_FACTOR * scene.replicas or _num_within(samples, now, window_s) < MIN_SAMPLES_TO_GROW:
        return None
    message = (
        f"demand of {average:.2f} replicas over only {window_s} s needs {wanted} at "
        f"{policy.targets.utilization:.0%} each, at least {PANIC_FACTOR} times the present {scene.replicas}"
    )
    return _Proposal(wanted, Reason.PANIC, message)


def _by_queue(
    policy: AutoscalingSpec, scene: Scene, samples: Sequence[Sample], records: Sequence[ScalingRecord], now: datetime
) -> _Proposal | None:
    """More replicas for a queue that stays long, if the last step up has had time to show and none is under way."""
    if scene.num_pending > 0 or scene.num_ready == 0:
        return None
    window = timedelta(seconds=policy.windows.up_seconds)
    if any(record.to_replicas > record.from_replicas and now - record.time < window for record in records):
        return None
    recent = [s for s in samples if s.at > now - timedelta(seconds=policy.windows.panic_seconds)]
    shortest = min((sample.queue_time_s for sample in recent), default=0.0)
    target = policy.targets.queue_time_seconds
    if shortest <= target:
        return None
    wanted = math.ceil(scene.num_ready * min(QUEUE_FACTOR, shortest / target) - _ROUNDING)
    if wanted <= scene.replicas:
        return None
    message = f"requests queue for {shortest:.1f} s (90th percentile), above the target of {target:g} s"
    return _Proposal(wanted, Reason.QUEUE, message)


def _limited(policy: AutoscalingSpec, scene: Scene, up: _Proposal, latest: Sample, average: float) -> Decision:
    step = max(2 * scene.replicas, scene.replicas + 2)
    desired = min(up.replicas, step, policy.max_replicas)
    limit, message = None, up.message
    if desired == policy.max_replicas < up.replicas:
        limit, message = Limit.MAX_REPLICAS, f"{message}; maxReplicas is {policy.max_replicas}"
    elif desired < up.replicas:
        limit, message = Limit.STEP, f"{message}; one step goes no further than {step}"
    return Decision(desired, up.replicas, up.reason, message, limit, latest, average)


def _down_or_steady(
    policy: AutoscalingSpec,
    scene: Scene,
    samples: Sequence[Sample],
    records: Sequence[ScalingRecord],
    latest: Sample,
    average: float,
    recommended: int,
    now: datetime,
) -> Decision:
    down_target = policy.targets.utilization * DOWN_PER_UP_TARGET
    window = timedelta(seconds=policy.windows.down_seconds)
    peak = max(sample.demand for sample in samples if sample.at >= now - window or sample is latest)
    # Demand now decides whether fewer would do at all; the peak of the window decides whether that has lasted.
    wanted_now, wanted = (max(1, replicas_for(demand, down_target)) for demand in (latest.demand, peak))
    if scene.replicas <= policy.min_replicas or wanted_now >= scene.replicas:
        limit = Limit.MIN_REPLICAS if recommended < policy.min_replicas == scene.replicas else None
        fits = "fits" if recommended <= scene.replicas else "is too new to act on with"
        message = f"demand of {average:.2f} replicas {fits} {scene.replicas}"
        return Decision(scene.replicas, recommended, Reason.STEADY, message, limit, latest, average)
    obstacle = _obstacle_to_down(policy, scene, samples, records, average, wanted, now)
    if obstacle is not None:
        message = f"demand of {latest.demand:.2f} replicas would fit {wanted_now}, but {obstacle}"
        return Decision(scene.replicas, recommended, Reason.COOLING_DOWN, message, None, latest, average)
    message = (
        f"demand stayed at or below {peak:.2f} replicas for {policy.windows.down_seconds} s, "
        f"which {scene.replicas - 1} can carry"
    )
    return Decision(scene.replicas - 1, recommended, Reason.LOW_DEMAND, message, None, latest, average)


def _obstacle_to_down(
    policy: AutoscalingSpec,
    scene: Scene,
    samples: Sequence[Sample],
    records: Sequence[ScalingRecord],
    average: float,
    wanted: int,
    now: datetime,
) -> str | None:
    """Why one replica fewer must wait; None when it need not."""
    window_s = policy.windows.down_seconds
    if scene.is_rolling:
        return "a rollout is under way"
    if samples[-1].num_silent:
        return f"{samples[-1].num_silent} ready pods do not report their load"
    if not _covers(samples, now - timedelta(seconds=window_s)):
        return f"load has not been seen for the whole {window_s} s yet"
    if wanted >= scene.replicas:
        return f"it was higher within the last {window_s} s"
    if average / (scene.replicas - 1) > policy.targets.utilization:
        return f"its average of {average:.2f} would be too much for one fewer"
    pause = min(BETWEEN_DOWNS, timedelta(seconds=window_s))
    if any(record.to_replicas < record.from_replicas and now - record.time < pause for record in records):
        return f"a replica left less than {pause.seconds} s ago"
    return None


def _covers(samples: Sequence[Sample], since: datetime) -> bool:
    """Whether samples reach back that far without a hole."""
    times = [sample.at for sample in samples]
    if times[0] > since:
        return False
    return all(later - earlier <= STALE_AFTER for earlier, later in itertools.pairwise(times) if later > since)


def _num_within(samples: Sequence[Sample], now: datetime, window_s: int) -> int:
    """Samples in a window; one no longer than two ticks could never hold two, and asks for as many as fit."""
    window = max(timedelta(seconds=window_s), MIN_SAMPLES_TO_GROW * TICK + TICK)
    return sum(1 for sample in samples if sample.at > now - window)


def _mean(samples: Sequence[Sample], since: datetime, latest: Sample) -> float:
    recent = [sample.demand for sample in samples if sample.at > since] or [latest.demand]
    return sum(recent) / len(recent)
