"""Whole runs of the real reconciler on a simulated cluster: a trace of load in, replicas over time out."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from tests.operator.make import PLATFORM
from tests.operator.simulation import TICK_S, Simulation
from tidegate_contract import labels

SHORT_WINDOWS = {"upSeconds": 20, "panicSeconds": 10, "downSeconds": 30}


def simulation(demand: float | object, **autoscaling: object) -> Simulation:
    made = Simulation(demand=demand if callable(demand) else lambda _: float(str(demand)))
    made.apply(autoscaling={"minReplicas": 1, "maxReplicas": 4, **autoscaling})
    return made


def test_load_brings_a_second_replica_within_a_minute_and_idleness_takes_it_away() -> None:
    run = simulation(lambda t: 1.25 if 60 <= t < 180 else 0.0, maxReplicas=2, windows=SHORT_WINDOWS)
    replicas = asyncio.run(run.run(400))
    at = {(i + 1) * TICK_S: n for i, n in enumerate(replicas)}
    assert at[60] == 1
    assert at[120] == 2
    assert at[175] == 2
    assert at[400] == 1
    changes = [(a, b) for a, b in itertools.pairwise(replicas) if a != b]
    assert changes == [(1, 2), (2, 1)]
    told = [event for event in run.events() if event.startswith("Scaled")]
    assert len(told) == 2
    assert "from 1 to 2 replicas: demand of" in told[0]
    assert "from 2 to 1 replicas: demand stayed" in told[1]


@pytest.mark.parametrize(
    "demand",
    [
        pytest.param(lambda t: 3.5, id="a load that stays high"),
        pytest.param(lambda t: 9.0 if t % 200 < 60 else 0.2, id="bursts"),
        pytest.param(lambda t: t / 200, id="a slow rise"),
        pytest.param(lambda t: 2.0 if t % 10 == 0 else 0.0, id="a flicker at every tick"),
        pytest.param(lambda t: 0.0, id="no load at all"),
    ],
)
def test_replicas_stay_in_bounds_step_limits_hold_and_it_settles(demand: object) -> None:
    run = simulation(demand, maxReplicas=6)
    replicas = asyncio.run(run.run(1500))
    assert all(1 <= n <= 6 for n in replicas)
    for before, after in itertools.pairwise(replicas):
        assert after <= max(2 * before, before + 2)
        assert after >= before - 1
    downs = [i for i, (a, b) in enumerate(itertools.pairwise(replicas)) if b < a]
    assert all((later - earlier) * TICK_S >= 60 for earlier, later in itertools.pairwise(downs))


def test_steady_load_ends_in_one_count_without_swinging() -> None:
    run = simulation(2.0, maxReplicas=10)
    replicas = asyncio.run(run.run(1200))
    assert replicas[-1] == 4
    changes = [(a, b) for a, b in itertools.pairwise(replicas) if a != b]
    assert len(changes) <= 3
    assert all(b > a for a, b in changes)


def test_slow_start_of_pods_does_not_cascade() -> None:
    run = Simulation(demand=lambda _: 1.25, startup_s=240)
    run.apply(autoscaling={"minReplicas": 1, "maxReplicas": 10})
    assert max(asyncio.run(run.run(700))) == 2  # however long the second takes


def test_pod_with_the_fewest_requests_leaves() -> None:
    # Shares are uneven by one request: the pod whose share is smaller must go.
    run = simulation(lambda t: 1.25 if t < 100 else 0.25, maxReplicas=2, windows=SHORT_WINDOWS)
    asyncio.run(run.run(100))
    busy = sorted(run.pod_names())[0]
    asyncio.run(run.run(60))
    assert run.replicas == 1
    assert run.pod_names() == {busy}


def test_restarted_operator_keeps_replicas_and_its_ten_decisions() -> None:
    run = simulation(1.25, maxReplicas=2)
    asyncio.run(run.run(100))
    decisions = run.status["autoscaling"]["decisions"]
    run.restart_operator()
    assert set(asyncio.run(run.run(60))) == {2}
    assert run.status["autoscaling"]["decisions"] == decisions


def test_restarted_operator_does_not_scale_down_before_it_has_seen_the_whole_window() -> None:
    run = simulation(lambda t: 1.25 if t < 100 else 0.0, maxReplicas=2)
    asyncio.run(run.run(350))
    run.restart_operator()
    assert set(asyncio.run(run.run(295))) == {2}
    assert 1 in asyncio.run(run.run(60))


def test_silent_pods_are_not_idle_pods() -> None:
    run = simulation(lambda t: 1.25 if t < 100 else 0.0, maxReplicas=2, windows=SHORT_WINDOWS)
    asyncio.run(run.run(100))
    run.silent = run.pod_names()
    assert set(asyncio.run(run.run(200))) == {2}
    assert run.condition("ScalingActive")["reason"] == "NoData"


def test_only_the_last_ten_decisions_are_kept_newest_first() -> None:
    run = simulation(lambda t: 3.5 if t % 200 < 60 else 0.0, maxReplicas=4, windows=SHORT_WINDOWS)
    asyncio.run(run.run(2000))
    times = [decision["time"] for decision in run.status["autoscaling"]["decisions"]]
    assert len(times) == 10
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("mode", ["Advisory", "Paused"])
def test_without_active_mode_replicas_stay_and_status_says_why(mode: str) -> None:
    run = simulation(3.0, mode=mode)
    assert set(asyncio.run(run.run(120))) == {1}
    assert run.condition("ScalingActive")["reason"] == mode
    assert run.status["autoscaling"]["recommended"] == 5


def test_someone_elses_scaling_is_left_alone_for_ten_minutes_and_then_taken_over() -> None:
    run = simulation(0.2)
    asyncio.run(run.run(400))
    run.cluster.scale("demo", "chat", 3, "kubectl")
    assert set(asyncio.run(run.run(600))) == {3}
    active = run.condition("ScalingActive")
    assert (active["status"], active["reason"]) == ("False", "ScaledByOther")
    assert "kubectl" in active["message"]
    asyncio.run(run.run(10))
    assert run.condition("ScalingActive")["status"] == "True"
    assert "overriddenSince" not in run.status["autoscaling"]
    asyncio.run(run.run(200))
    assert run.replicas == 1

    run.cluster.scale("demo", "chat", 2, "kubectl")
    assert set(asyncio.run(run.run(600))) == {2}


def test_ten_minutes_after_scaling_by_hand_count_while_paused_too() -> None:
    run = simulation(0.2, mode="Paused")
    asyncio.run(run.run(60))
    run.cluster.scale("demo", "chat", 3, "kubectl")
    assert set(asyncio.run(run.run(620))) == {3}
    run.apply(autoscaling={"minReplicas": 1, "maxReplicas": 4, "mode": "Active"})
    asyncio.run(run.run(10))
    assert run.condition("ScalingActive")["status"] == "True"
    assert "overriddenSince" not in run.status["autoscaling"]


def test_from_fixed_to_autoscaling_and_back_no_pod_is_lost_on_the_way() -> None:
    run = Simulation(demand=lambda _: 1.75)
    run.apply(replicas=3)
    asyncio.run(run.run(60))
    names = run.pod_names()
    run.apply(autoscaling={"minReplicas": 1, "maxReplicas": 4})
    assert set(asyncio.run(run.run(60))) == {3}
    run.apply(replicas=3)
    assert set(asyncio.run(run.run(60))) == {3}
    assert run.pod_names() == names
    run.apply(replicas=2)
    assert set(asyncio.run(run.run(20))) == {2}


def test_rollout_under_load_keeps_capacity_and_ends() -> None:
    run = simulation(1.25, maxReplicas=2)
    asyncio.run(run.run(100))
    old = run.pod_names()
    run.apply(autoscaling={"minReplicas": 1, "maxReplicas": 2}, engine={"maxNumSeqs": 8})
    for _ in range(30):
        asyncio.run(run.step())
        ready = [pod for pod in run.pods() if pod["status"]["conditions"][0]["status"] == "True"]
        assert len(ready) >= 2
        assert len(run.pods()) <= 3
    assert not old & run.pod_names()
    assert run.condition("Progressing")["reason"] == "Settled"


def test_new_operator_with_another_image_and_renderer_rolls_nothing_until_asked() -> None:
    run = simulation(0.2)
    asyncio.run(run.run(60))
    names, generation = run.pod_names(), run.deployment["metadata"]["generation"]
    run.restart_operator(replace(PLATFORM, server_image="tidegate/server:2", renderer_version="2"))
    asyncio.run(run.run(60))
    assert (run.pod_names(), run.deployment["metadata"]["generation"]) == (names, generation)
    assert labels.ROLL_ANNOTATION in run.status["updateAvailable"]

    run.cluster.put(
        {
            "apiVersion": "tidegate.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "chat", "namespace": "demo", "annotations": {labels.ROLL_ANNOTATION: "now"}},
        }
    )
    asyncio.run(run.run(60))
    assert not names & run.pod_names()
    assert "updateAvailable" not in run.status
    assert run.deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "tidegate/server:2"


def test_settled_service_writes_nothing() -> None:
    run = simulation(0.5)
    asyncio.run(run.run(120))
    run.cluster.writes.clear()
    asyncio.run(run.run(60))
    assert set(run.cluster.writes) <= {"apply tidegate-operator InferenceService"}  # the signals, now and then
    assert len(run.cluster.writes) <= 4
