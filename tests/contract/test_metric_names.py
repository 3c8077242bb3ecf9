"""Rules that every metric of the contract keeps, so that dashboards can rely on them."""

import re

import pytest

from tidegate_contract import metric_names
from tidegate_contract.metric_names import OPERATOR_METRICS, SERVER_METRICS, VLLM_METRICS, Metric, MetricKind

ALL = (*SERVER_METRICS, *VLLM_METRICS, *OPERATOR_METRICS)

# What the gateways and dashboards made for vLLM look for, by heart: a rename here breaks them.
VLLM_NAMES = {
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_success_total",
    "vllm:cache_config_info",
}


def test_every_metric_of_the_module_is_in_a_list() -> None:
    declared = {value for value in vars(metric_names).values() if isinstance(value, Metric)}
    assert declared == set(ALL)


def test_names_are_unique() -> None:
    assert len({metric.name for metric in ALL}) == len(ALL)


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_a_metric_says_its_kind_in_its_name(metric: Metric) -> None:
    assert re.fullmatch(r"(tidegate_|vllm:)[a-z0-9_]+", metric.name)
    assert (metric.kind is MetricKind.COUNTER) == metric.name.endswith("_total")
    assert (metric.kind is MetricKind.INFO) == metric.name.endswith("_info")
    assert (metric.kind is MetricKind.HISTOGRAM) == bool(metric.buckets)
    assert list(metric.buckets) == sorted(metric.buckets)
    assert metric.help.endswith(".")


@pytest.mark.parametrize("metric", [*SERVER_METRICS, *VLLM_METRICS], ids=lambda metric: metric.name)
def test_a_pod_s_metric_says_which_model(metric: Metric) -> None:
    assert metric.labels[0] == metric_names.MODEL_LABEL


@pytest.mark.parametrize("metric", VLLM_METRICS, ids=lambda metric: metric.name)
def test_vllm_s_metrics_say_which_engine_as_vllm_s_own_do(metric: Metric) -> None:
    assert metric.labels[:2] == ("model_name", "engine")


def test_the_vllm_set_is_there_in_full() -> None:
    assert {metric.name for metric in VLLM_METRICS} >= VLLM_NAMES


def test_queue_times_are_told_from_five_milliseconds_on() -> None:
    assert metric_names.QUEUE_TIME.buckets[0] == 0.005
