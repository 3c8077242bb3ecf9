"""What a workload is run against, as the driver sees it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from tidegate_server.bench.engine_sample import EngineSample

Clock = Callable[[], float]


class RequestFailed(Exception):
    """The target answered, but not with the completion that was asked for; or it did not answer."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a finished completion, as the target has them."""

    num_prompt_tokens: int
    num_output_tokens: int


class Target(Protocol):
    """Something that serves completions."""

    @property
    def vocab_size(self) -> int:
        """Prompts may hold token ids below it."""
        ...

    async def complete(
        self, index: int, prompt_token_ids: Sequence[int], num_output_tokens: int, on_tokens: Callable[[int], None]
    ) -> Usage:
        """Ask for one completion and read it to its end; cancelled, it is aborted.

        Args:
            on_tokens: called with the number of tokens whenever some arrive; 1 where the target does not say.

        Raises:
            RequestFailed: in one line, why.
        """
        ...


class EngineWatch(Protocol):
    """Tells what the engine behind a target does."""

    def watching(self, on_sample: Callable[[EngineSample], None], now_s: Clock) -> AbstractAsyncContextManager[None]:
        """Give samples from the entry to the exit, one at each of these at least.

        Args:
            now_s: seconds since the start of the run.
        """
        ...
