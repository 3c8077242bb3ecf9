"""Which requests are refused at the door: they could never run, or too many wait already."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate_server.engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one request can have when it has the engine to itself."""

    max_model_len: int  # tokens, prompt and output together
    num_kv_blocks: int
    block_size: int
    vocab_size: int

    @property
    def num_kv_tokens(self) -> int:
        return self.num_kv_blocks * self.block_size

    @property
    def max_total_tokens(self) -> int:
        """Most tokens, prompt and output together, of any request: the context, or the pool where that is smaller."""
        return min(self.max_model_len, self.num_kv_tokens)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much may wait; None: any number."""

    max_requests: int | None = None
    max_tokens: int | None = None  # that those who wait still have to compute


NO_LIMITS: Final = QueueLimits()


def refusal(prompt_token_ids: Sequence[int], sampling: SamplingParams, capacity: Capacity) -> str | None:
    """Why this request can never run, in words for its sender; None when it can."""
    num_prompt_tokens = len(prompt_token_ids)
    if num_prompt_tokens == 0:
        return "The prompt has no tokens; send at least one."
    if sampling.max_tokens < 1:
        return f"max_tokens is {sampling.max_tokens}; ask for at least 1."
    if num_prompt_tokens + 1 > capacity.max_model_len:
        return (
            f"The prompt has {num_prompt_tokens} tokens and leaves no room for an output token: the model's context "
            f"holds {capacity.max_model_len} tokens. Shorten the prompt."
        )
    if num_prompt_tokens + 1 > capacity.num_kv_tokens:
        return (
            f"The prompt has {num_prompt_tokens} tokens and leaves no room for an output token: this server's KV cache "
            f"holds {capacity.num_kv_tokens} tokens. Shorten the prompt, or start the server with more KV memory."
        )
    lowest, highest = min(prompt_token_ids), max(prompt_token_ids)
    if lowest < 0 or highest >= capacity.vocab_size:
        wrong = lowest if lowest < 0 else highest
        return f"The prompt holds token id {wrong}; this model's are 0 to {capacity.vocab_size - 1}."
    return None


def queue_refusal(
    num_prompt_tokens: int, num_queued_requests: int, num_queued_tokens: int, limits: QueueLimits
) -> str | None:
    """Why this request may not join the queue, in words for its sender; None when it may.

    An empty queue takes any request: a prompt longer than `limits.max_tokens` would otherwise never be served.
    """
    if num_queued_requests == 0:
        return None
    if limits.max_requests is not None and num_queued_requests >= limits.max_requests:
        return f"The queue is full: {num_queued_requests} requests wait, and no more than {limits.max_requests} may."
    if limits.max_tokens is not None and num_queued_tokens + num_prompt_tokens > limits.max_tokens:
        return (
            f"The queue is full: {num_queued_tokens} tokens wait to be computed, and with the {num_prompt_tokens} of "
            f"this prompt there would be more than {limits.max_tokens}."
        )
    return None
