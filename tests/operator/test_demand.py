"""Load reports to demand in replicas."""

import pytest

from tests.operator.make import NOW, pod, report
from tidegate_contract.admin import LoadReport, ServerState
from tidegate_operator.demand import take_sample


@pytest.mark.parametrize(
    ("reports", "demand"),
    [
        pytest.param([report(num_running=2)], 0.5, id="requests in a replica's sequences"),
        pytest.param([report(num_running=4, num_waiting=4)], 1.5, id="a waiting request counts half"),
        pytest.param([report(kv_tokens_in_use=900, num_running=1)], 0.9, id="tokens when they are the tighter limit"),
        pytest.param(
            [report(kv_tokens_in_use=900, waiting_prompt_tokens=600)], 1.2, id="waiting prompt tokens count half"
        ),
        pytest.param([report(num_running=4), report(num_running=2)], 1.5, id="pods add up"),
        pytest.param([report(num_running=4), report()], 1.0, id="an idle pod does not change demand"),
        pytest.param([report(max_num_seqs=0, kv_tokens_capacity=0)], 0.0, id="no capacity known is no demand"),
    ],
)
def test_demand(reports: list[LoadReport], demand: float) -> None:
    pods = [pod(f"p{i}") for i in range(len(reports))]
    sample = take_sample(pods, {p.name: r for p, r in zip(pods, reports, strict=True)}, NOW)
    assert sample is not None
    assert sample.demand == pytest.approx(demand)


def test_silent_pod_counts_as_the_mean_of_the_others() -> None:
    sample = take_sample([pod("a"), pod("b")], {"a": report(num_running=4)}, NOW)
    assert sample is not None
    assert (sample.demand, sample.num_reporting, sample.num_silent) == (2.0, 1, 1)


def test_no_answer_is_no_sample_rather_than_zero() -> None:
    assert take_sample([pod("a")], {}, NOW) is None


def test_loading_leaving_and_draining_pods_do_not_change_demand() -> None:
    pods = [pod("a"), pod("loading", ready=False), pod("leaving", is_terminating=True), pod("draining")]
    reports = {
        "a": report(num_running=4),
        "leaving": report(num_running=4),
        "draining": report(num_running=4, state=ServerState.DRAINING),
    }
    sample = take_sample(pods, reports, NOW)
    assert sample is not None
    assert (sample.demand, sample.num_reporting, sample.num_silent) == (1.0, 1, 0)


def test_worst_queue_is_the_samples_queue() -> None:
    reports = {"a": report(queue_time_p90_s=0.5), "b": report(queue_time_p90_s=3.0)}
    sample = take_sample([pod("a"), pod("b")], reports, NOW)
    assert sample is not None
    assert sample.queue_time_s == 3.0
