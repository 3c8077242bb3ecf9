"""A short way to write down what happened to a request, for the tests of what reads records."""

from collections.abc import Sequence

from tidegate_server.bench.record import Outcome, RequestRecord


def record(
    index: int = 0,
    *,
    arrival_s: float = 0.0,
    sent_s: float | None = None,
    tokens_at_s: Sequence[float] = (1.0, 2.0, 3.0),
    end_s: float = 3.0,
    num_output_tokens: int = 3,
    error: str | None = None,
    outcome: Outcome | None = None,
) -> RequestRecord:
    return RequestRecord(
        index=index,
        arrival_s=arrival_s,
        sent_s=arrival_s if sent_s is None else sent_s,
        token_times_s=tuple(tokens_at_s),
        end_s=end_s,
        num_prompt_tokens=10,
        num_output_tokens=num_output_tokens,
        outcome=outcome or (Outcome.FINISHED if error is None else Outcome.FAILED),
        error=error,
    )
