"""What happened to one request, in seconds after the workload's start."""

import itertools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as its client saw it."""

    index: int
    arrival_s: float  # planned; waiting inside the load generator counts against the server, not for it
    sent_s: float
    event_times_s: tuple[float, ...]  # one per piece of text; a piece may hold several tokens
    end_s: float
    num_prompt_tokens: int  # as the server counts them
    num_output_tokens: int
    error: str | None = None  # why it does not count as served

    @property
    def ttft_s(self) -> float:
        """Arrival to first text."""
        return self.event_times_s[0] - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first; None for a single token."""
        if self.num_output_tokens < 2:
            return None
        return (self.event_times_s[-1] - self.event_times_s[0]) / (self.num_output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        return self.end_s - self.arrival_s

    @property
    def itl_s(self) -> tuple[float, ...]:
        """Gaps between one piece of text and the next."""
        times = self.event_times_s
        return tuple(later - earlier for earlier, later in itertools.pairwise(times))
