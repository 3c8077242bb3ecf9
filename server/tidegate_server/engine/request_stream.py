"""One request's outputs as they arrive, on the API's side."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from tidegate_server.engine.messages import FinishReason, RequestOutput
from tidegate_server.errors import DeadlineExceeded, EngineError, InvalidRequest, Overloaded, RequestError


class Inbox:
    """What has arrived for one request and was not read yet; the client's end of a stream."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.is_complete = False  # nothing more will arrive
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[RequestOutput | RequestError] = deque()
        self._wakeup: asyncio.Future[None] | None = None

    def put(self, arrived: RequestOutput | RequestError) -> None:
        """The next output, or the error that ends the stream; dropped when nobody will read it."""
        if self.is_complete:
            return
        self._arrived.append(arrived)
        if isinstance(arrived, RequestError) or arrived.finish_reason is not None:
            self.is_complete = True
        self._wake()

    def close(self) -> None:
        """Nothing more will be read; somebody who waits gets None."""
        self.is_complete = True
        self._arrived.clear()
        self._wake()

    async def get(self) -> RequestOutput | RequestError | None:
        """The next arrival; None when there will be none. For one reader at a time."""
        while not self._arrived:
            if self.is_complete:
                return None
            self._wakeup = self._loop.create_future()
            try:
                await self._wakeup
            finally:
                self._wakeup = None
        return self._arrived.popleft()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)


class RequestStream(AsyncIterator[RequestOutput]):
    """Yields outputs until one has a finish reason. Leaving early, by any road, aborts the request.

    A request that fails raises where its next output would be: `InvalidRequest` when it can never run, `Overloaded`
    when the queue was full, `DeadlineExceeded` when it waited too long, `EngineError` when the engine failed it or is
    gone.

    The client holds the inbox and not this object, so that a stream which its caller forgets is collected.

    Args:
        on_leave: called with the inbox when the caller leaves, be the request complete or not.
        retry_after_s: asked when the queue was full: in how many seconds to try again.
    """

    def __init__(self, inbox: Inbox, on_leave: Callable[[Inbox], None], retry_after_s: Callable[[], int]) -> None:
        self._inbox = inbox
        self._on_leave = on_leave
        self._retry_after_s = retry_after_s
        self._loop = asyncio.get_running_loop()

    @property
    def request_id(self) -> str:
        return self._inbox.request_id

    async def __anext__(self) -> RequestOutput:
        try:
            arrived = await self._inbox.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if arrived is None:
            raise StopAsyncIteration
        if isinstance(arrived, RequestError):
            raise arrived
        if arrived.finish_reason is FinishReason.ERROR:
            raise self._failure(arrived)
        return arrived

    def _failure(self, output: RequestOutput) -> RequestError:
        message = output.error or "the engine failed this request"
        if output.refused:
            # All else that the engine refuses was refused before, so what does not fit is the length.
            return InvalidRequest(message, code="context_length_exceeded")
        if output.overloaded:
            return Overloaded(message, code="queue_full", retry_after_s=self._retry_after_s())
        if output.timed_out:
            return DeadlineExceeded(message)
        return EngineError(message)

    async def aclose(self) -> None:
        """End the stream; a request that still runs is aborted. Twice is harmless."""
        self._on_leave(self._inbox)
        self._inbox.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # A caller that broke out of its loop and forgot the stream must not leave the engine at work.
        if not self._inbox.is_complete and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_leave, self._inbox)
