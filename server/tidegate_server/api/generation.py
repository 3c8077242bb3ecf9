"""Runs the choices of one API request on the engine and gives their text as it comes."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from tidegate_server.api.choice_text import ChoiceText, Delta
from tidegate_server.api.engine_port import EnginePort
from tidegate_server.api.sampling import Limits, Wanted
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.metrics import RequestMeter, ServerMetrics
from tidegate_server.text.chat_template import ChatTemplate
from tidegate_server.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What requests are served with, once the model is loaded."""

    engine: EnginePort
    tokenizer: Tokenizer
    template: ChatTemplate | None
    limits: Limits
    model_name: str
    created: int  # when the model was loaded, in seconds since 1970
    metrics: ServerMetrics


@dataclass(frozen=True, slots=True)
class _Choice:
    """One engine request: one choice of one prompt."""

    index: int  # in the reply
    engine_request_id: str
    prompt_token_ids: Sequence[int]
    num_prompt_tokens_counted: int  # the prompt's length for its first choice, else 0: `n` choices share one prompt
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Generation:
    """One API request, ready to run."""

    request_id: str
    service: Service
    prompts: Sequence[Sequence[int]]
    wanted: Wanted

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.wanted.num_choices

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """The text of all choices as it comes, each choice ending with a finish reason; closing it aborts them.

        Raises:
            RequestError: the engine failed one of the choices; the others are aborted.
        """
        choices = self._choices()
        if len(choices) == 1:
            async with aclosing(self._run(choices[0])) as deltas:
                async for delta in deltas:
                    yield delta
            return
        async with aclosing(_merged([self._run(choice) for choice in choices])) as merged:
            async for delta in merged:
                yield delta

    def _choices(self) -> list[_Choice]:
        choices: list[_Choice] = []
        for prompt in self.prompts:
            for number in range(self.wanted.num_choices):
                index = len(choices)
                choices.append(
                    _Choice(
                        index=index,
                        engine_request_id=f"{self.request_id}-{index}",
                        prompt_token_ids=prompt,
                        num_prompt_tokens_counted=len(prompt) if number == 0 else 0,
                        sampling=self.wanted.params(len(prompt), number, self.service.limits),
                    )
                )
        return choices

    async def _run(self, choice: _Choice) -> AsyncGenerator[Delta, None]:
        service = self.service
        text = ChoiceText(
            choice.index,
            service.tokenizer.detokenizer(choice.prompt_token_ids),
            self.wanted.stop,
            choice.sampling.min_tokens,
        )
        meter = RequestMeter(service.metrics, choice.num_prompt_tokens_counted, time.monotonic())
        outcome = "abort"
        try:
            outputs = service.engine.submit(
                choice.engine_request_id,
                choice.prompt_token_ids,
                choice.sampling,
                self.wanted.priority,
                self.wanted.cache_salt,
            )
            async with aclosing(outputs):
                async for output in outputs:
                    if output.queue_time_s is not None:
                        meter.queued(output.queue_time_s)
                    delta = text.take(output)
                    meter.tokens(delta.num_tokens, time.monotonic())
                    if delta.finish is not None:
                        outcome = delta.finish
                    yield delta
                    if delta.finish is not None:
                        return
        except Exception:
            outcome = "error"
            raise
        finally:
            meter.ended(outcome, time.monotonic())


async def _merged(streams: Sequence[AsyncGenerator[Delta, None]]) -> AsyncGenerator[Delta, None]:
    """The items of several streams in the order in which they come; the first error ends all."""
    arrived: asyncio.Queue[Delta | BaseException | None] = asyncio.Queue()

    async def forward(stream: AsyncGenerator[Delta, None]) -> None:
        try:
            async for delta in stream:
                arrived.put_nowait(delta)
            arrived.put_nowait(None)
        except Exception as error:
            arrived.put_nowait(error)

    tasks = [asyncio.create_task(forward(stream)) for stream in streams]
    num_open = len(tasks)
    try:
        while num_open:
            item = await arrived.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
