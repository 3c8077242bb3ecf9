"""Token counts of one reply."""

from tidegate_server.api.choice_text import Delta
from tidegate_server.api.generation import Generation
from tidegate_server.api.schema import PromptTokensDetails, Usage


class UsageCount:
    """Adds up the deltas of all choices; a prompt counts once, however many choices it has."""

    def __init__(self, generation: Generation) -> None:
        self._num_prompt_tokens = generation.num_prompt_tokens
        self._num_choices_per_prompt = generation.wanted.num_choices
        self._num_completion_tokens = 0
        self._num_cached_tokens: dict[int, int] = {}  # by prompt

    def add(self, delta: Delta) -> None:
        self._num_completion_tokens += delta.num_tokens
        if delta.choice % self._num_choices_per_prompt == 0:
            prompt = delta.choice // self._num_choices_per_prompt
            self._num_cached_tokens[prompt] = max(self._num_cached_tokens.get(prompt, 0), delta.num_cached_tokens)

    def total(self) -> Usage:
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_completion_tokens,
            total_tokens=self._num_prompt_tokens + self._num_completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._num_cached_tokens.values())),
        )
