"""Load reports of pods to one sample of demand."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tidegate_contract.admin import LoadReport, ServerState
from tidegate_operator.pods import Pod

WAITING_WEIGHT = 0.5  # a waiting request will hold its share for about half of the time that matters now


@dataclass(frozen=True, slots=True)
class Sample:
    """Demand at one moment, from the pods that answered."""

    at: datetime
    demand: float  # in full replicas: 1.5 means one and a half pods' worth of work
    queue_time_s: float  # 90th percentile of the worst pod
    num_running: int
    num_waiting: int
    num_reporting: int
    num_silent: int  # ready pods that did not answer; they count as the mean of the others
    in_flight: tuple[tuple[str, int], ...]  # (pod name, requests running or waiting there)


def take_sample(pods: Sequence[Pod], reports: Mapping[str, LoadReport], now: datetime) -> Sample | None:
    """One sample over all serving pods; None when none of them answered: no data is not zero demand.

    Args:
        pods: every pod of the service.
        reports: by pod name; pods that did not answer are absent.
    """
    serving = [pod for pod in pods if pod.is_serving]
    answers = {
        pod.name: reports[pod.name]
        for pod in serving
        if pod.name in reports and reports[pod.name].state is ServerState.READY
    }
    if not answers:
        return None
    num_silent = sum(1 for pod in serving if pod.name not in reports)
    known = list(answers.values())
    return Sample(
        at=now,
        demand=_demand(known) * (len(known) + num_silent) / len(known),
        queue_time_s=max(_finite(report.queue_time_p90_s) for report in known),
        num_running=sum(report.num_running for report in known),
        num_waiting=sum(report.num_waiting for report in known),
        num_reporting=len(known),
        num_silent=num_silent,
        in_flight=tuple((name, report.num_running + report.num_waiting) for name, report in answers.items()),
    )


def _demand(reports: Sequence[LoadReport]) -> float:
    """How many full replicas the work in hand would fill: by KV tokens or by requests, whichever is more."""
    tokens = sum(report.kv_tokens_in_use + WAITING_WEIGHT * report.waiting_prompt_tokens for report in reports)
    requests = sum(report.num_running + WAITING_WEIGHT * report.num_waiting for report in reports)
    tokens_per_replica = sum(report.kv_tokens_capacity for report in reports) / len(reports)
    requests_per_replica = sum(report.max_num_seqs for report in reports) / len(reports)
    return max(
        tokens / tokens_per_replica if tokens_per_replica > 0 else 0.0,
        requests / requests_per_replica if requests_per_replica > 0 else 0.0,
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) and value > 0 else 0.0
