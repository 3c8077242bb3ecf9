"""How long the next request would queue, and when its first token would come: from numbers, without clock or state."""

import math
from dataclasses import dataclass
from typing import Final

from tidegate_server.engine.step_budget import StepBudget
from tidegate_server.engine.step_time import NO_STEP, StepShape

# Sooner than a second nothing has changed; later than two minutes a prediction is a guess.
_MIN_RETRY_S: Final = 1
_MAX_RETRY_S: Final = 120


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request that holds blocks."""

    num_blocks: int
    max_tokens_left: int  # it ends after drawing so many, or sooner


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """What the queue's future depends on, at the end of a step."""

    running: tuple[RunningRequest, ...] = ()
    decodes: StepShape = NO_STEP  # the next step with those that decode already, and nobody else
    num_prefill_tokens: int = 0  # that running requests compute before they decode
    num_waiting: int = 0
    num_waiting_tokens: int = 0  # that waiting requests have to compute; what the prefix cache holds of it is not known
    num_available_blocks: int
    num_total_blocks: int
    block_size: int
    max_num_running: int
    mean_output_tokens: int = 0  # of the requests that ended lately; 0: none has

    @property
    def num_tokens_ahead(self) -> int:
        return self.num_prefill_tokens + self.num_waiting_tokens

    @property
    def all_decode(self) -> StepShape:
        """A step in which every running request decodes: what most steps are while the queue waits for seats."""
        num_running = len(self.running)
        num_context_tokens = sum(each.num_blocks for each in self.running) * self.block_size
        return StepShape(num_running, num_running, num_context_tokens, num_context_tokens)

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks for so many known tokens and the one drawn after them."""
        return num_tokens // self.block_size + 1


def queue_delay_s(state: QueueState, num_prompt_tokens: int, budget: StepBudget) -> float:
    """Seconds from the next step's start until a request that arrives now, of no special priority, is first computed.

    Those ahead of it have their prompts computed, as fast as the step's budget allows beside the decodes that run now;
    and so many running requests end that it finds a seat and blocks. Both go on in the same steps.
    """
    # Attention's part grows with the position: that of the middle of a prompt stands for all.
    num_prompts = state.num_waiting + (state.num_prefill_tokens > 0)
    start = state.num_tokens_ahead // (2 * max(1, num_prompts))
    num_prefill_steps, prefill_step_s = _prefill_steps(state, state.num_tokens_ahead, start, budget)
    num_decode_steps = max(0.0, _num_steps_until_admitted(state, num_prompt_tokens) - num_prefill_steps)
    return num_prefill_steps * prefill_step_s + num_decode_steps * budget.model.predict(state.all_decode)


def ttft_s(state: QueueState, num_prompt_tokens: int, budget: StepBudget) -> float:
    """Seconds from the next step's start until a request that arrives now, none of it cached, has its first token."""
    num_steps, step_s = _prefill_steps(state, num_prompt_tokens, num_prompt_tokens // 2, budget)
    return queue_delay_s(state, num_prompt_tokens, budget) + num_steps * step_s


def retry_after_s(predicted_s: float) -> int:
    """What to tell a client that is refused, given how long it would have queued: whole seconds, 1 to 120.

    For the `Retry-After` of every refusal for want of room, with the heartbeat's `queue_delay_predicted_s`.
    """
    return math.ceil(min(max(predicted_s, _MIN_RETRY_S), _MAX_RETRY_S))


def _prefill_steps(state: QueueState, num_tokens: int, start: int, budget: StepBudget) -> tuple[float, float]:
    """How many steps so many prompt tokens from `start` on take beside today's decodes, and the seconds of each."""
    if num_tokens == 0:
        return 0.0, 0.0
    num_per_step = min(num_tokens, max(1, budget.num_prefill_tokens(state.decodes, state.decodes, start)))
    return num_tokens / num_per_step, budget.model.predict(state.decodes.plus(start, num_per_step))


def _num_steps_until_admitted(state: QueueState, num_prompt_tokens: int) -> float:
    """Steps until so many requests have ended that everybody ahead and one more prompt have seats and blocks."""
    left = sorted((_tokens_left(each, state.mean_output_tokens), each.num_blocks) for each in state.running)
    num_ends = max(
        len(left) + state.num_waiting + 1 - state.max_num_running,
        _num_ends_for_blocks(state, num_prompt_tokens, [num_blocks for _, num_blocks in left]),
    )
    if num_ends <= 0:
        return 0.0
    if num_ends <= len(left):
        return left[num_ends - 1][0]
    # Some of those who end are still waiting themselves. From then on requests end as fast as all seats draw tokens.
    num_tokens = sum(num_tokens for num_tokens, _ in left)
    mean = state.mean_output_tokens or num_tokens / max(1, len(left))
    last = left[-1][0] if left else 0
    return max(last, (num_tokens + (num_ends - len(left)) * mean) / _num_seats(state))


def _tokens_left(request: RunningRequest, mean_output_tokens: int) -> int:
    """Of a request that goes on, nobody knows but that it ends at its limit: the best guess is another mean output."""
    return min(request.max_tokens_left, mean_output_tokens) if mean_output_tokens else request.max_tokens_left


def _num_ends_for_blocks(state: QueueState, num_prompt_tokens: int, held_blocks: list[int]) -> int:
    """How many requests must end, those first that hold `held_blocks`, before the queue and one more prompt fit."""
    num_queued = state.num_waiting_tokens // state.block_size + state.num_waiting + state.num_blocks(num_prompt_tokens)
    # Admission leaves a block for each running request.
    num_short = num_queued + len(held_blocks) - state.num_available_blocks
    num_ends = 0
    for num_blocks in held_blocks:
        if num_short <= 0:
            return num_ends
        num_short -= num_blocks
        num_ends += 1
    if num_short <= 0:
        return num_ends
    return num_ends + math.ceil(num_short * (state.num_waiting + 1) / num_queued)


def _num_seats(state: QueueState) -> int:
    """Requests that run at once when all are like those here, of which memory may allow fewer than the limit does."""
    num_requests = len(state.running) + state.num_waiting
    if num_requests == 0:
        return state.max_num_running
    held = sum(each.num_blocks for each in state.running)
    num_blocks = held + state.num_waiting_tokens // state.block_size + state.num_waiting
    return max(1, min(state.max_num_running, state.num_total_blocks * num_requests // num_blocks))
