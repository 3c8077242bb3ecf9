"""A target and a watch whose every move a test decides, and a clock that moves when it is told to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from tidegate_server.bench.engine_sample import EngineSample
from tidegate_server.bench.target import Clock, RequestFailed, Usage


class SlowTarget:
    """Gives one token to each request, and the others only once `go_on` is set; request `bad` fails."""

    vocab_size = 2000

    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad
        self.go_on = asyncio.Event()
        self.prompts: dict[int, Sequence[int]] = {}
        self.aborted: list[int] = []
        self.num_begun = 0
        self.begun = asyncio.Condition()

    async def complete(
        self, index: int, prompt_token_ids: Sequence[int], num_output_tokens: int, on_tokens: Callable[[int], None]
    ) -> Usage:
        self.prompts[index] = prompt_token_ids
        if index == self.bad:
            raise RequestFailed("it is bad")
        on_tokens(1)
        async with self.begun:
            self.num_begun += 1
            self.begun.notify_all()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.aborted.append(index)
            raise
        on_tokens(num_output_tokens - 1)
        return Usage(len(prompt_token_ids), num_output_tokens)

    async def have_begun(self, number: int) -> None:
        async with self.begun:
            await self.begun.wait_for(lambda: self.num_begun >= number)


class CountingWatch:
    """Gives a sample at its entry and at its exit."""

    @contextlib.asynccontextmanager
    async def watching(self, on_sample: Callable[[EngineSample], None], now_s: Clock) -> AsyncIterator[None]:
        on_sample(EngineSample(at_s=now_s(), num_running=0))
        yield
        on_sample(EngineSample(at_s=now_s(), num_running=1))
