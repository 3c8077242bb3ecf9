"""What happened to one request, in seconds after the start of the run."""

import itertools
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    FINISHED = "finished"
    FAILED = "failed"  # refused, or ended by an error
    UNFINISHED = "unfinished"  # the run ended first


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as its client saw it."""

    index: int
    arrival_s: float  # as planned: waiting inside the load generator counts against the server, not for it
    sent_s: float
    token_times_s: tuple[float, ...]  # one per piece of output, which may hold several tokens
    end_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    outcome: Outcome
    error: str | None = None  # of a failed one

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token; None when none came."""
        return self.token_times_s[0] - self.arrival_s if self.token_times_s else None

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first; None with fewer than two."""
        if self.num_output_tokens < 2 or len(self.token_times_s) < 2:
            return None
        return (self.token_times_s[-1] - self.token_times_s[0]) / (self.num_output_tokens - 1)

    @property
    def itl_s(self) -> tuple[float, ...]:
        """Gaps between one piece of output and the next."""
        return tuple(later - earlier for earlier, later in itertools.pairwise(self.token_times_s))

    @property
    def e2e_s(self) -> float:
        """Arrival to end."""
        return self.end_s - self.arrival_s
