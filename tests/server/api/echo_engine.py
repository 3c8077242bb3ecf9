"""An engine that answers a prompt with the prompt's own tokens: the API's view of an engine, without a model."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from tests.server.text.byte_tokenizer import END
from tidegate_server.engine.messages import AddRequest, FinishReason, RequestOutput
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.errors import EngineError, RequestError

CRASH_TOKEN = ord("\x18")  # a prompt with it fails after its first output


class EchoEngine:
    """Echoes each prompt, then draws the end token; keeps to `max_tokens`, `stop_token_ids` and `ignore_eos`.

    Attributes:
        tokens_per_step: how many tokens one output brings.
        gate: while it is closed, streams wait before their next output.
        num_free_outputs: of each stream, that come even while the gate is closed.
        aborted: ids of requests whose reader left early, in order.
    """

    def __init__(self) -> None:
        self.tokens_per_step = 1
        self.gate = asyncio.Event()
        self.gate.set()
        self.num_free_outputs = 0
        self.added: list[AddRequest] = []
        self.aborted: list[str] = []
        self._streams: dict[str, EchoStream] = {}

    def submit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        deadline_s: float | None = None,
        leader_id: str = "",
    ) -> "EchoStream":
        request = AddRequest(
            request_id=request_id,
            prompt_token_ids=list(prompt_token_ids),
            sampling=sampling,
            arrival_s=0.0,
            priority=priority,
            cache_salt=cache_salt,
            tenant=tenant,
            deadline_s=deadline_s,
            leader_id=leader_id,
        )
        self.added.append(request)
        stream = self._streams[request_id] = EchoStream(self, request)
        return stream

    @property
    def open_ids(self) -> list[str]:
        return list(self._streams)

    def stop(self, failure: RequestError | None = None) -> None:
        """End every open stream: with the failure, or with `abort` as a shutdown does."""
        for stream in self._streams.values():
            stream.end(failure)

    def left(self, request_id: str, *, complete: bool) -> None:
        self._streams.pop(request_id, None)
        if not complete:
            self.aborted.append(request_id)


class EchoStream:
    def __init__(self, engine: EchoEngine, request: AddRequest) -> None:
        self._engine = engine
        self._request = request
        self._answer = _answer(request)
        self._num_given = 0
        self._num_outputs = 0
        self._is_complete = False
        self._end: asyncio.Future[RequestError | None] = asyncio.get_running_loop().create_future()

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._is_complete:
            raise StopAsyncIteration
        self._num_outputs += 1
        if self._num_outputs <= self._engine.num_free_outputs:
            return self._next()
        gate: asyncio.Future[bool] = asyncio.ensure_future(self._engine.gate.wait())
        waits: set[asyncio.Future[bool] | asyncio.Future[RequestError | None]] = {gate, self._end}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gate.cancel()
        if self._end.done():
            self._is_complete = True
            if (failure := self._end.result()) is not None:
                raise failure
            return RequestOutput(request_id=self._request.request_id, finish_reason=FinishReason.ABORT)
        return self._next()

    def _next(self) -> RequestOutput:
        if self._num_given and CRASH_TOKEN in self._request.prompt_token_ids:
            self._is_complete = True
            raise EngineError("the device fell off the bus")
        first = self._num_given == 0
        token_ids = self._answer[self._num_given : self._num_given + self._engine.tokens_per_step]
        self._num_given += len(token_ids)
        finish = _finish(self._request.sampling, token_ids[-1]) if self._num_given == len(self._answer) else None
        self._is_complete = finish is not None
        num_candidates = self._request.sampling.logprobs
        candidates = tuple((rank, -1.0 - rank) for rank in range(num_candidates or 0))
        return RequestOutput(
            request_id=self._request.request_id,
            token_ids=tuple(token_ids),
            logprobs=() if num_candidates is None else (-0.5,) * len(token_ids),
            top_logprobs=() if num_candidates is None else (candidates,) * len(token_ids),
            finish_reason=finish,
            num_cached_tokens=2 if first else 0,
            queue_time_s=0.25 if first else None,
        )

    def end(self, failure: RequestError | None) -> None:
        if not self._end.done():
            self._end.set_result(failure)

    async def aclose(self) -> None:
        self._engine.left(self._request.request_id, complete=self._is_complete)
        self._is_complete = True


def _answer(request: AddRequest) -> list[int]:
    sampling = request.sampling
    answer: list[int] = []
    source = request.prompt_token_ids
    while len(answer) < sampling.max_tokens:
        if not sampling.ignore_eos and len(answer) == len(source) and len(answer) >= sampling.min_tokens:
            answer.append(END)
            break
        answer.append(source[len(answer) % len(source)])
        if answer[-1] in sampling.stop_token_ids:
            break
    return answer


def _finish(sampling: SamplingParams, last: int) -> FinishReason:
    ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else (END,))}
    return FinishReason.STOP if last in ends else FinishReason.LENGTH
