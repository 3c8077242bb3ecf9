"""A command to a request: what every scheduler does with an arrival."""

from collections.abc import Container, Sequence

from tidegate_server.engine.admission import Capacity, refusal
from tidegate_server.engine.batch import RequestId
from tidegate_server.engine.messages import AddRequest
from tidegate_server.engine.prefix_cache import BlockHash
from tidegate_server.engine.request import Request
from tidegate_server.engine.seeds import derive_seed


def problem_with(command: AddRequest, capacity: Capacity, unfinished: Container[str]) -> str | None:
    """Why a request cannot be taken in, in words for its sender; None when it can."""
    problem = refusal(command.prompt_token_ids, command.sampling, capacity)
    if problem is None and command.request_id in unfinished:
        return f"A request with the id {command.request_id} is running already; give each request its own."
    return problem


def new_request(
    command: AddRequest,
    claim: int,
    *,
    max_total_tokens: int,
    eos_token_ids: Sequence[int],
    root_seed: int,
    cache_root: BlockHash,
) -> Request:
    """A waiting request.

    Args:
        claim: number of arrival, from 0.
        root_seed: of the seeds of requests that bring none.
    """
    sampling = command.sampling
    eos = () if sampling.ignore_eos else eos_token_ids
    return Request(
        request_id=RequestId(command.request_id),
        token_ids=list(command.prompt_token_ids),
        num_prompt_tokens=len(command.prompt_token_ids),
        sampling=sampling,
        seed=sampling.seed if sampling.seed is not None else derive_seed(root_seed, claim),
        end_token_ids=frozenset(eos).union(sampling.stop_token_ids),
        max_total_tokens=max_total_tokens,
        priority=command.priority,
        claim=claim,
        arrival_s=command.arrival_s,
        cache_root=cache_root,
        tenant=command.tenant,
        deadline_s=command.deadline_s,
    )
