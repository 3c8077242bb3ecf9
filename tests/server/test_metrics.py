"""A scrape against the contract, and what feeds it."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidegate_contract.admin import ServerState
from tidegate_contract.metric_names import (
    FAULT_KINDS,
    FINISHED_REASONS,
    KV_BLOCK_STATES,
    OUTCOMES,
    PREEMPTION_KINDS,
    PREEMPTION_REASONS,
    PREFIX_RESULTS,
    REFUSAL_REASONS,
    SERVER_METRICS,
    STEP_TOKEN_KINDS,
    VERDICTS,
    VLLM_METRICS,
    MetricKind,
)
from tidegate_server.engine.faults import FaultKind
from tidegate_server.engine.messages import PreemptionCount, StepOutput
from tidegate_server.engine.preemption_kind import PreemptionKind, PreemptionReason
from tidegate_server.engine.snapshot import EngineSnapshot
from tidegate_server.metrics import BuildFacts, RequestMeter, ServerMetrics

KINDS = {"counter": MetricKind.COUNTER, "gauge": MetricKind.GAUGE, "histogram": MetricKind.HISTOGRAM}

# What says of several things which one holds, or carries facts in its labels.
ONE_OF_THEM_IS_ONE = (
    "tidegate_build_info",
    "vllm:cache_config_info",
    "tidegate_server_state",
    "tidegate_exactness",
)


class Pod:
    """Everything that the metrics read, settable."""

    def __init__(self) -> None:
        self.snapshot = EngineSnapshot()
        self.state = ServerState.STARTING
        self.facts = BuildFacts(version="1.2.3")
        self.metrics = ServerMetrics("m", lambda: self.snapshot, lambda: self.state, lambda: self.facts)

    def families(self) -> dict[str, tuple[str, list[tuple[str, dict[str, str], float]]]]:
        """Exposed name → (type, samples): the name of a counter ends in `_total`, as in a scrape."""
        parsed = {}
        for family in text_string_to_metric_families(self.metrics.exposition().decode()):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            parsed[name] = (family.type, [(s.name, dict(s.labels), float(s.value)) for s in family.samples])
        return parsed

    def value(self, sample: str, **labels: str) -> float:
        (found,) = (
            value
            for _, samples in self.families().values()
            for name, own, value in samples
            if name == sample and labels.items() <= own.items()
        )
        return found


def test_a_scrape_and_the_contract_hold_the_same_names_both_ways() -> None:
    assert set(Pod().families()) == {metric.name for metric in (*SERVER_METRICS, *VLLM_METRICS)}


def test_kinds_labels_and_buckets_are_those_of_the_contract() -> None:
    families = Pod().families()
    for metric in (*SERVER_METRICS, *VLLM_METRICS):
        kind, samples = families[metric.name]
        expected = MetricKind.GAUGE if metric.kind is MetricKind.INFO else metric.kind
        assert KINDS[kind] is expected, metric.name
        for _, labels, _ in samples:
            assert set(labels) - {"le"} == set(metric.labels), metric.name
            assert labels["model_name"] == "m"
            assert labels.get("engine") == ("0" if metric in VLLM_METRICS else None), metric.name
        if metric.kind is MetricKind.HISTOGRAM:
            edges = {float(labels["le"]) for name, labels, _ in samples if name.endswith("_bucket")}
            assert edges == {*metric.buckets, math.inf}, metric.name


def test_the_first_scrape_is_all_zeros_with_every_label_there() -> None:
    pod = Pod()
    for name, (_, samples) in pod.families().items():
        assert samples, name
        if name not in ONE_OF_THEM_IS_ONE:
            assert all(value == 0.0 for _, _, value in samples), name
    for outcome in OUTCOMES:
        assert pod.value("tidegate_requests_total", outcome=outcome) == 0
    for reason in FINISHED_REASONS:
        assert pod.value("vllm:request_success_total", finished_reason=reason) == 0
    for kind in FAULT_KINDS:
        assert pod.value("tidegate_faults_total", kind=kind) == 0
    for direction in ("out", "in"):
        assert pod.value("tidegate_swap_bytes_total", direction=direction) == 0
    for prediction in ("queue_delay", "step_time"):
        assert pod.value("tidegate_prediction_error_ratio", prediction=prediction) == 0
    for reason in REFUSAL_REASONS:
        assert pod.value("tidegate_admission_refused_total", reason=reason) == 0
    for kind in PREEMPTION_KINDS:
        for reason in PREEMPTION_REASONS:
            assert pod.value("tidegate_preemptions_total", kind=kind, reason=reason) == 0
    for state in KV_BLOCK_STATES:
        assert pod.value("tidegate_kv_blocks", state=state) == 0
    for result in PREFIX_RESULTS:
        assert pod.value("tidegate_prefix_cache_tokens_total", result=result) == 0
    for kind in STEP_TOKEN_KINDS:
        assert pod.value("tidegate_step_tokens_sum", kind=kind) == 0


def test_the_contract_s_preemptions_are_the_engine_s() -> None:
    assert tuple(PreemptionKind) == PREEMPTION_KINDS
    assert tuple(PreemptionReason) == PREEMPTION_REASONS


def test_gauges_and_counters_of_the_engine_come_from_its_heartbeat() -> None:
    pod = Pod()
    pod.snapshot = EngineSnapshot(
        step=7, num_running=2, num_waiting=3, kv_blocks_live=5, kv_blocks_total=20, num_preemptions=4,
        prefix_miss_tokens=20, prefix_hit_tokens=64, prefix_host_hit_tokens=16, swapped_out_bytes=300,
        swapped_in_bytes=200, queue_delay_predicted_s=1.5, thrash_level=0.125, num_audit_repairs=2,
    )  # fmt: skip
    expected = {
        "tidegate_engine_steps_total": 7,
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 3,
        "vllm:kv_cache_usage_perc": 0.25,
        "tidegate_kv_usage_ratio": 0.25,
        "vllm:num_preemptions_total": 4,
        "vllm:prefix_cache_queries_total": 100,
        "vllm:prefix_cache_hits_total": 80,
        "tidegate_kv_blocks_capacity": 20,
        "tidegate_thrash_level": 0.125,
        "tidegate_audit_repairs_total": 2,
        "tidegate_queue_delay_predicted_seconds": 1.5,
    }
    assert {name: pod.value(name) for name in expected} == expected
    swapped = {direction: pod.value("tidegate_swap_bytes_total", direction=direction) for direction in ("out", "in")}
    assert swapped == {"out": 300, "in": 200}


def test_each_kind_of_prediction_tells_its_own_error() -> None:
    pod = Pod()
    pod.snapshot = EngineSnapshot(prediction_error_ratio=0.25, step_time_error_ratio=0.05)
    assert pod.value("tidegate_prediction_error_ratio", prediction="queue_delay") == 0.25
    assert pod.value("tidegate_prediction_error_ratio", prediction="step_time") == 0.05


def test_faults_come_by_kind_from_the_engine_and_hung_steps_from_who_watches_it() -> None:
    pod = Pod()
    pod.snapshot = EngineSnapshot(
        faults_request=1, faults_bad_logits=2, faults_out_of_memory=3, faults_step=4, faults_copy=5
    )
    for _ in range(6):
        pod.metrics.step_hung()
    values = {kind: pod.value("tidegate_faults_total", kind=kind) for kind in FAULT_KINDS}
    assert values == {"request": 1, "bad_logits": 2, "out_of_memory": 3, "step": 4, "copy": 5, "hung_step": 6}


def test_every_kind_of_fault_that_the_engine_knows_is_in_the_contract() -> None:
    assert {kind.value for kind in FaultKind} | {"hung_step"} == set(FAULT_KINDS)


def test_kv_blocks_are_told_by_state() -> None:
    pod = Pod()
    pod.snapshot = EngineSnapshot(
        kv_blocks_free=1, kv_blocks_live=2, kv_blocks_cached=3, kv_blocks_pending=4, kv_blocks_total=10,
        host_blocks_held=5, host_blocks_cached=6, host_blocks_total=11,
    )  # fmt: skip
    values = {state: pod.value("tidegate_kv_blocks", state=state) for state in KV_BLOCK_STATES}
    assert values == {"free": 1, "live": 2, "cached": 3, "pending": 4, "swapped": 5}


def test_prompt_tokens_are_told_by_where_they_were_found() -> None:
    pod = Pod()
    pod.snapshot = EngineSnapshot(
        prefix_miss_tokens=24, prefix_hit_tokens=60, prefix_host_hit_tokens=16, recomputed_tokens=9
    )
    values = {result: pod.value("tidegate_prefix_cache_tokens_total", result=result) for result in PREFIX_RESULTS}
    assert values == {"hit": 60, "host_hit": 16, "miss": 24, "recomputed": 9}


def test_a_step_counts_its_time_its_tokens_by_kind_and_the_preemptions_before_it() -> None:
    pod = Pod()
    swapped = PreemptionCount(PreemptionKind.SWAP, PreemptionReason.SEATS, 3)
    for num_prefill_tokens in (40, 0):
        pod.metrics.step_told(
            StepOutput(
                step=1,
                outputs=(),
                step_time_s=0.25,
                num_prefill_tokens=num_prefill_tokens,
                num_decode_tokens=2,
                preemptions=(swapped,),
            )
        )
    assert pod.value("tidegate_step_duration_seconds_sum") == 0.5
    assert pod.value("tidegate_step_tokens_sum", kind="prefill") == 40
    assert pod.value("tidegate_step_tokens_count", kind="prefill") == 1
    assert pod.value("tidegate_step_tokens_sum", kind="decode") == 4
    assert pod.value("tidegate_preemptions_total", kind="swap", reason="seats") == 6
    assert pod.value("tidegate_preemptions_total", kind="recompute", reason="blocks") == 0


def test_a_message_without_a_forward_pass_is_no_step() -> None:
    pod = Pod()
    pod.metrics.step_told(StepOutput(step=1, outputs=(), step_time_s=0.25))
    assert pod.value("tidegate_step_duration_seconds_count") == 0


def test_the_state_is_one_of_all_states() -> None:
    pod = Pod()
    pod.state = ServerState.READY
    values = {state: pod.value("tidegate_server_state", state=state.value) for state in ServerState}
    assert values == {state: float(state is ServerState.READY) for state in ServerState}


@pytest.mark.parametrize(("exact", "verdict"), [(None, "not_probed"), (True, "exact"), (False, "inexact")])
def test_exactness_is_one_of_all_verdicts(exact: bool | None, verdict: str) -> None:
    pod = Pod()
    pod.facts = BuildFacts(version="1.2.3", exact=exact)
    values = {each: pod.value("tidegate_exactness", verdict=each) for each in VERDICTS}
    assert values == {each: float(each == verdict) for each in VERDICTS}


def test_facts_follow_once_the_engine_is_ready() -> None:
    pod = Pod()
    assert pod.value("tidegate_build_info", version="1.2.3", device="") == 1
    pod.facts = BuildFacts(version="1.2.3", device="cpu", dtype="float32", block_size=16, num_kv_blocks=9)
    assert pod.value("tidegate_build_info", device="cpu", dtype="float32") == 1
    assert pod.value("vllm:cache_config_info", block_size="16", num_gpu_blocks="9", cache_dtype="float32") == 1


def test_a_request_is_measured_from_arrival_to_last_token_under_both_names() -> None:
    pod = Pod()
    pod.metrics.prompt_taken(10)
    meter = RequestMeter(pod.metrics, arrived_s=100.0)
    meter.queued(0.5)
    meter.tokens(1, 101.0)
    meter.tokens(2, 104.0)
    meter.ended("stop", 105.0)
    meter.ended("abort", 999.0)  # the reader that leaves after the end
    sums = {
        "tidegate_queue_time_seconds": 0.5,
        "vllm:request_queue_time_seconds": 0.5,
        "tidegate_time_to_first_token_seconds": 1.0,
        "vllm:time_to_first_token_seconds": 1.0,
        "tidegate_inter_token_latency_seconds": 3.0,
        "vllm:inter_token_latency_seconds": 3.0,
        "tidegate_time_per_output_token_seconds": 1.5,
        "tidegate_request_latency_seconds": 5.0,
        "vllm:e2e_request_latency_seconds": 5.0,
        "tidegate_prompt_length_tokens": 10,
        "tidegate_output_length_tokens": 3,
    }
    assert {name: pod.value(f"{name}_sum") for name in sums} == sums
    assert pod.value("tidegate_inter_token_latency_seconds_count") == 2
    assert (pod.value("tidegate_prompt_tokens_total"), pod.value("vllm:generation_tokens_total")) == (10, 3)
    assert pod.value("tidegate_requests_total", outcome="stop") == 1
    assert pod.value("tidegate_requests_total", outcome="abort") == 0


def test_requests_that_did_not_end_well_leave_the_latencies_alone() -> None:
    pod = Pod()
    RequestMeter(pod.metrics, 0.0).ended("error", 50.0)
    pod.metrics.request_refused(None)
    assert pod.value("tidegate_request_latency_seconds_count") == 0
    assert pod.value("tidegate_requests_total", outcome="error") == 1
    assert pod.value("vllm:request_success_total", finished_reason="error") == 1
    assert pod.value("tidegate_requests_total", outcome="refused") == 1


def test_a_refused_request_is_counted_once_and_with_its_reason_where_it_has_one() -> None:
    pod = Pod()
    pod.metrics.request_refused(None)
    pod.metrics.request_refused("draining")
    pod.metrics.admission_refused("deadline")
    assert pod.value("tidegate_requests_total", outcome="refused") == 2
    refused = {reason: pod.value("tidegate_admission_refused_total", reason=reason) for reason in REFUSAL_REASONS}
    assert refused == {**dict.fromkeys(REFUSAL_REASONS, 0), "draining": 1, "deadline": 1}
