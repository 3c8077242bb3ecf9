"""The records of one run to the numbers that are told."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegate_server.bench.engine_sample import EngineSample, EngineSummary, summarise_engine
from tidegate_server.bench.record import Outcome, RequestRecord


@dataclass(frozen=True, slots=True)
class Distribution:
    """One quantity over all requests, tokens or gaps."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run. Times are seconds; None where no request gave the quantity.

    Tokens and times of an unfinished request count as far as it came, those of a failed one do not.
    """

    num_finished: int
    num_failed: int
    num_unfinished: int
    num_unsent: int  # planned, but the run ended before their arrival
    duration_s: float
    num_prompt_tokens: int  # of requests that got a token
    num_output_tokens: int
    requests_per_s: float  # finished ones
    input_tokens_per_s: float
    output_tokens_per_s: float
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution | None  # of finished requests
    max_send_delay_s: float  # most that a request left the load generator late
    errors: Mapping[str, int]  # how many requests failed with each, the most frequent first
    engine: EngineSummary | None


def summarise(
    records: Sequence[RequestRecord], num_planned: int, duration_s: float, samples: Sequence[EngineSample] = ()
) -> Summary:
    """The numbers of one run.

    Args:
        records: of the requests that were sent.
        duration_s: start to the end of the last request, or of the run where that came first.
    """
    count = Counter(record.outcome for record in records)
    sound = [record for record in records if record.outcome is not Outcome.FAILED]
    finished = [record for record in records if record.outcome is Outcome.FINISHED]
    num_prompt_tokens = sum(record.num_prompt_tokens for record in sound if record.token_times_s)
    num_output_tokens = sum(record.num_output_tokens for record in sound)

    def per_second(number: int) -> float:
        return number / duration_s if duration_s > 0 else 0.0

    return Summary(
        num_finished=count[Outcome.FINISHED],
        num_failed=count[Outcome.FAILED],
        num_unfinished=count[Outcome.UNFINISHED],
        num_unsent=num_planned - len(records),
        duration_s=duration_s,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        requests_per_s=per_second(len(finished)),
        input_tokens_per_s=per_second(num_prompt_tokens),
        output_tokens_per_s=per_second(num_output_tokens),
        ttft_s=distribution(ttft for record in sound if (ttft := record.ttft_s) is not None),
        tpot_s=distribution(tpot for record in sound if (tpot := record.tpot_s) is not None),
        itl_s=distribution(gap for record in sound for gap in record.itl_s),
        e2e_s=distribution(record.e2e_s for record in finished),
        max_send_delay_s=max((record.sent_s - record.arrival_s for record in records), default=0.0),
        errors=dict(Counter(record.error for record in records if record.error is not None).most_common()),
        engine=summarise_engine(samples),
    )


def distribution(values: Iterable[float]) -> Distribution | None:
    """Mean and percentiles; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Distribution(
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, interpolated between neighbours.

    Args:
        ordered: at least one value, ascending.
        percent: 0 to 100.
    """
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
