"""What a request is told of itself."""

from tidegate_server.engine.batch import SampledToken
from tidegate_server.engine.messages import FinishReason, RequestOutput
from tidegate_server.engine.request import Request


def token_output(request: Request, token: SampledToken, reason: FinishReason | None) -> RequestOutput:
    """A token that was just appended; `reason` when the request ends with it."""
    queue_time_s = None
    if request.num_output_tokens == 1 and request.first_scheduled_s is not None:
        queue_time_s = max(0.0, request.first_scheduled_s - request.arrival_s)
    return RequestOutput(
        request_id=request.request_id,
        token_ids=(token.token_id,),
        logprobs=() if token.logprob is None else (token.logprob,),
        top_logprobs=() if token.logprob is None else (token.top_logprobs,),
        finish_reason=reason,
        num_cached_tokens=request.num_cached_tokens,
        queue_time_s=queue_time_s,
        num_preemptions=request.num_preemptions,
    )


def end_output(
    request: Request, reason: FinishReason, error: str | None = None, *, timed_out: bool = False
) -> RequestOutput:
    """The end of a request that comes without a token."""
    return RequestOutput(
        request_id=request.request_id,
        finish_reason=reason,
        error=error,
        timed_out=timed_out,
        num_cached_tokens=request.num_cached_tokens,
        num_preemptions=request.num_preemptions,
    )


def expired_output(request: Request, now: float) -> RequestOutput:
    """The end of a request that was not begun by its deadline."""
    why = f"The request waited {now - request.arrival_s:.1f} s, longer than it may, and was not begun."
    return end_output(request, FinishReason.ERROR, why, timed_out=True)
