"""One line per case: the samples and the pods go in, the replicas and the reason come out."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from tests.operator.make import NOW, sample, samples
from tidegate_operator.autoscale import Limit, Reason, Scene, autoscale, replicas_for
from tidegate_operator.demand import Sample
from tidegate_operator.resource import AutoscalingSpec, ScalingTargets, ScalingWindows
from tidegate_operator.resource_status import ScalingRecord

DAY_LONG = 400  # seconds of samples that cover every default window


def changed(from_replicas: int, to_replicas: int, ago_s: float) -> ScalingRecord:
    return ScalingRecord(
        time=NOW - timedelta(seconds=ago_s), from_replicas=from_replicas, to_replicas=to_replicas, reason="", message=""
    )


@dataclass(frozen=True)
class Case:
    id: str
    seen: tuple[Sample, ...]
    wants: int
    reason: Reason
    replicas: int = 2
    ready: int | None = None  # None: all of them
    pending: int = 0
    rolling: bool = False
    limited_by: Limit | None = None
    records: tuple[ScalingRecord, ...] = ()
    policy: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("steady demand keeps replicas", samples(1.2, for_s=DAY_LONG), 2, Reason.STEADY),
    Case("demand above the target adds what it needs", samples(1.5, for_s=60), 3, Reason.DEMAND),
    Case("demand exactly at the target adds nothing", samples(1.3, for_s=60), 2, Reason.STEADY),
    Case(
        "ten seconds of a surge outweigh a quiet minute",
        (*samples(0.1, for_s=60)[:-2], sample(5, 3.0), sample(0, 3.0)),
        4,
        Reason.PANIC,
        limited_by=Limit.STEP,
    ),
    Case(
        "ten seconds of a small rise wait for the minute",
        (*samples(1.0, for_s=60)[:-2], sample(5, 1.6), sample(0, 1.6)),
        2,
        Reason.STEADY,
    ),
    Case("one odd sample adds no replica", (sample(0, 9.0),), 2, Reason.STEADY),
    Case("one step at most doubles", samples(9.0, for_s=60), 8, Reason.DEMAND, replicas=4, limited_by=Limit.STEP),
    Case("one step may add two", samples(9.0, for_s=60), 3, Reason.DEMAND, replicas=1, limited_by=Limit.STEP),
    Case(
        "the maximum is never passed",
        samples(9.0, for_s=60),
        3,
        Reason.DEMAND,
        limited_by=Limit.MAX_REPLICAS,
        policy={"max_replicas": 3},
    ),
    Case(
        "at the maximum nothing changes, and it says why",
        samples(9.0, for_s=60),
        3,
        Reason.DEMAND,
        replicas=3,
        limited_by=Limit.MAX_REPLICAS,
        policy={"max_replicas": 3},
    ),
    Case("fewer than the minimum rise without any data", (), 2, Reason.BELOW_MINIMUM, 1, policy={"min_replicas": 2}),
    Case("more than the maximum fall without any data", (), 3, Reason.ABOVE_MAXIMUM, 5, policy={"max_replicas": 3}),
    Case("no data changes nothing", (), 2, Reason.NO_DATA),
    Case("old data is no data", (sample(16, 9.0), sample(21, 9.0)), 2, Reason.NO_DATA),
    Case("a long queue adds half", samples(0.5, for_s=60, queue_time_s=9.0), 3, Reason.QUEUE),
    Case("a queue a little over the target adds one", samples(0.5, for_s=60, queue_time_s=2.1), 3, Reason.QUEUE),
    Case("a queue below the target adds nothing", samples(1.2, for_s=60, queue_time_s=1.9), 2, Reason.STEADY),
    Case(
        "a queue adds nothing while a pod is on its way",
        samples(1.2, for_s=60, queue_time_s=9.0),
        2,
        Reason.STEADY,
        ready=1,
        pending=1,
    ),
    Case(
        "a queue adds nothing more within a minute of the last step up",
        samples(1.2, for_s=60, queue_time_s=9.0),
        2,
        Reason.STEADY,
        records=(changed(1, 2, 30),),
    ),
    Case(
        "a queue that has just become short adds nothing",
        (*samples(1.2, for_s=60, queue_time_s=9.0)[:-1], sample(0, 1.2, queue_time_s=0.1)),
        2,
        Reason.STEADY,
    ),
    Case("low demand takes one away after the window", samples(0.4, for_s=DAY_LONG), 1, Reason.LOW_DEMAND),
    Case("low demand takes only one away at a time", samples(0.0, for_s=DAY_LONG), 7, Reason.LOW_DEMAND, replicas=8),
    Case("low demand waits for the whole window", samples(0.4, for_s=295), 2, Reason.COOLING_DOWN),
    Case(
        "one peak within the window keeps replicas",
        (sample(305, 0.1), sample(300, 0.1), sample(295, 1.1), *samples(0.1, for_s=290)),
        2,
        Reason.COOLING_DOWN,
    ),
    Case(
        "a hole in the data keeps replicas",
        tuple(
            s for s in samples(0.1, for_s=DAY_LONG) if not timedelta(seconds=100) < NOW - s.at < timedelta(seconds=130)
        ),
        2,
        Reason.COOLING_DOWN,
    ),
    Case("a silent pod keeps replicas", samples(0.1, for_s=DAY_LONG, num_silent=1), 2, Reason.COOLING_DOWN),
    Case("a rollout keeps replicas", samples(0.1, for_s=DAY_LONG), 2, Reason.COOLING_DOWN, rolling=True),
    Case("a rollout does not stop growth", samples(1.5, for_s=60), 3, Reason.DEMAND, rolling=True),
    Case(
        "a second one leaves a minute after the first",
        samples(0.1, for_s=DAY_LONG),
        3,
        Reason.COOLING_DOWN,
        replicas=3,
        records=(changed(4, 3, 59),),
    ),
    Case(
        "and not later",
        samples(0.1, for_s=DAY_LONG),
        2,
        Reason.LOW_DEMAND,
        replicas=3,
        records=(changed(4, 3, 60),),
    ),
    Case("the last one stays", samples(0.0, for_s=DAY_LONG), 1, Reason.STEADY, replicas=1),
    Case(
        "the minimum stays, and it says why",
        samples(0.0, for_s=DAY_LONG),
        2,
        Reason.STEADY,
        limited_by=Limit.MIN_REPLICAS,
        policy={"min_replicas": 2},
    ),
    Case("between the two targets nothing moves", samples(1.1, for_s=DAY_LONG), 2, Reason.STEADY),
    Case(
        "a short window of its own makes it fast",
        samples(0.0, for_s=20),
        1,
        Reason.LOW_DEMAND,
        policy={"windows": ScalingWindows(down_seconds=20)},
    ),
    Case(
        "a target of its own makes it eager",
        samples(0.8, for_s=60),
        4,
        Reason.DEMAND,
        policy={"targets": ScalingTargets(utilization=0.2)},
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_autoscale(case: Case) -> None:
    policy = AutoscalingSpec(**({"max_replicas": 10} | case.policy))
    ready = case.replicas if case.ready is None else case.ready
    scene = Scene(case.replicas, ready, case.pending, case.rolling)
    decision = autoscale(policy, scene, case.seen, case.records, NOW)
    assert (decision.desired, decision.reason, decision.limited_by) == (case.wants, case.reason, case.limited_by)
    assert decision.message


@pytest.mark.parametrize(("demand", "replicas"), [(0.0, 0), (0.65, 1), (1.3, 2), (1.95, 3), (1.96, 4)])
def test_rounding_noise_adds_no_replica(demand: float, replicas: int) -> None:
    assert replicas_for(demand, 0.65) == replicas
