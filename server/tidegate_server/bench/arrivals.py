"""When requests arrive: all at once, or as a Poisson process."""

from random import Random


def arrival_times(
    num_requests: int | None, rate_per_s: float | None, duration_s: float | None, seed: int
) -> list[float]:
    """Seconds after the start, ascending.

    Args:
        num_requests: how many; None: all that arrive within `duration_s`, for which there must be a rate.
        rate_per_s: mean arrivals a second; None: all at once.
        duration_s: only read without `num_requests`.
    """
    if rate_per_s is None:
        assert num_requests is not None, "without a rate there is no end of arrivals"
        return [0.0] * num_requests
    assert num_requests is not None or duration_s is not None, "arrivals without an end"
    gaps = Random(f"{seed}/arrivals")
    times: list[float] = []
    now_s = gaps.expovariate(rate_per_s)
    while len(times) < num_requests if num_requests is not None else now_s < (duration_s or 0.0):
        times.append(now_s)
        now_s += gaps.expovariate(rate_per_s)
    return times
