"""Runs the choices of one API request on the engine and gives their text as it comes."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from tidegate_server.api.choice_text import ChoiceText, Delta
from tidegate_server.api.engine_port import EnginePort, OutputStream
from tidegate_server.api.refusals import refusal_reason
from tidegate_server.api.request_terms import RequestTerms
from tidegate_server.api.sampling import Limits, Wanted
from tidegate_server.errors import RequestError
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
class Generation:
    """One API request, ready to run."""

    request_id: str
    service: Service
    prompts: Sequence[Sequence[int]]
    wanted: Wanted
    terms: RequestTerms

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.wanted.num_choices

    async def submit(self) -> "RunningGeneration":
        """Hand all choices to the engine, which has them when this returns; the caller closes what it gets.

        Raises:
            RequestError: the engine takes one of them not; none is left running.
        """
        running = RunningGeneration(self)
        try:
            for prompt in self.prompts:
                for number in range(self.wanted.num_choices):
                    running.add(prompt, number)
                self.service.metrics.prompt_taken(len(prompt))
        except BaseException:
            await running.aclose()
            raise
        return running


class RunningGeneration:
    """The choices of one API request in the engine; closing it aborts those that have not ended."""

    def __init__(self, request: Generation) -> None:
        self.request = request
        self._choices: list[_RunningChoice] = []

    def add(self, prompt: Sequence[int], number: int) -> None:
        """Hand one choice to the engine: the `number`th of this prompt.

        Raises:
            RequestError: the engine does not take it.
        """
        request, service, index = self.request, self.request.service, len(self._choices)
        sampling = request.wanted.params(len(prompt), number, service.limits)
        text = ChoiceText(index, service.tokenizer.detokenizer(prompt), request.wanted.stop, sampling.min_tokens)
        arrived_s = time.monotonic()
        first = index - number  # of the choices of this prompt
        outputs = service.engine.submit(
            f"{request.request_id}-{index}",
            prompt,
            sampling,
            priority=request.wanted.priority,
            cache_salt=request.wanted.cache_salt,
            tenant=request.terms.tenant,
            deadline_s=request.terms.deadline_s,
            leader_id=f"{request.request_id}-{first}" if number > 0 else "",
        )
        self._choices.append(_RunningChoice(text, outputs, RequestMeter(service.metrics, arrived_s)))

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """The text of all choices as it comes, each choice ending with a finish reason; closing it aborts them.

        Raises:
            RequestError: the engine did not admit, or failed, one of the choices; the others are aborted.
        """
        streams = [choice.deltas() for choice in self._choices]
        async with aclosing(streams[0] if len(streams) == 1 else _merged(streams)) as deltas:
            try:
                async for delta in deltas:
                    yield delta
            except RequestError as error:
                if (reason := refusal_reason(error)) is not None:
                    self.request.service.metrics.admission_refused(reason)
                raise

    async def aclose(self) -> None:
        """Twice is harmless."""
        for choice in self._choices:
            await choice.aclose()


class _RunningChoice:
    """One engine request: one choice of one prompt."""

    def __init__(self, text: ChoiceText, outputs: OutputStream, meter: RequestMeter) -> None:
        self._text = text
        self._outputs = outputs
        self._meter = meter
        self._outcome = "abort"

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        try:
            async for output in self._outputs:
                if output.queue_time_s is not None:
                    self._meter.queued(output.queue_time_s)
                delta = self._text.take(output)
                self._meter.tokens(delta.num_tokens, time.monotonic())
                if delta.finish is not None:
                    self._outcome = delta.finish
                yield delta
                if delta.finish is not None:
                    return
        except RequestError as error:
            self._outcome = "error" if refusal_reason(error) is None else "refused"
            raise
        except Exception:
            self._outcome = "error"
            raise
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        await self._outputs.aclose()
        self._meter.ended(self._outcome, time.monotonic())


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
