"""A pod's life as its API sees it: who is taken in, who is refused and why, and when everything is done."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from enum import Enum, auto

from tidegate_contract.admin import ServerState
from tidegate_server.errors import Overloaded, RequestTooSlow

_MOVES: Mapping[ServerState, frozenset[ServerState]] = {
    ServerState.STARTING: frozenset({ServerState.READY, ServerState.DRAINING, ServerState.FAILED}),
    ServerState.READY: frozenset({ServerState.DRAINING, ServerState.FAILED}),
    ServerState.DRAINING: frozenset({ServerState.FAILED}),
    ServerState.FAILED: frozenset(),
}


class DrainEnd(Enum):
    """How a drain came to its end."""

    EMPTY = auto()  # everything was finished
    TIMEOUT = auto()
    HURRIED = auto()  # somebody asked to stop at once


class Lifecycle:
    """The state, the number of requests inside, and the drain.

    Everything is changed by the API's event loop alone; the ops port's threads read single values.
    """

    def __init__(self) -> None:
        self._state = ServerState.STARTING
        self._because = "starting: loading the model"
        self._num_unfinished = 0
        self._accepts = False
        self._arriving: set[asyncio.Timeout] = set()  # of requests whose bodies are still being sent
        self._beat_s = time.monotonic()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = asyncio.Event()
        self._drain_asked = asyncio.Event()
        self._drain_timeout_s: float | None = None
        self._skip_notice = False

    @property
    def state(self) -> ServerState:
        return self._state

    @property
    def because(self) -> str:
        """Why the state is what it is, for people."""
        return self._because

    @property
    def accepts(self) -> bool:
        """Whether new requests are taken: from ready on, and still during the notice of a drain."""
        return self._accepts

    @property
    def num_unfinished(self) -> int:
        return self._num_unfinished

    @property
    def beat_s(self) -> float:
        """When the API's event loop last showed that it runs."""
        return self._beat_s

    def beat(self, now_s: float) -> None:
        self._beat_s = now_s

    def became_ready(self) -> None:
        self._move(ServerState.READY, "ready")
        self._accepts = True

    def failed(self, because: str) -> None:
        """The engine is gone. Harmless when the pod has failed already."""
        if self._state is not ServerState.FAILED:
            self._move(ServerState.FAILED, because)
            self._stop_accepting()

    def _move(self, state: ServerState, because: str) -> None:
        assert state in _MOVES[self._state], f"{self._state} -> {state}"
        self._state = state
        self._because = because

    def _stop_accepting(self) -> None:
        self._accepts = False
        for deadline in self._arriving:
            if not deadline.expired():
                deadline.reschedule(0.0)  # long past: whoever waits is told now

    @asynccontextmanager
    async def arriving(self, within_s: float) -> AsyncIterator[None]:
        """The time in which the rest of a request has to come, cut short when the pod stops taking any.

        Raises:
            Overloaded: the pod takes no requests now, or no longer.
            RequestTooSlow: so many seconds have passed.
        """
        self.check_accepts()
        try:
            async with asyncio.timeout(within_s) as deadline:
                self._arriving.add(deadline)
                try:
                    yield
                finally:
                    self._arriving.discard(deadline)
        except TimeoutError:
            self.check_accepts()
            raise RequestTooSlow(f"the body did not arrive within {within_s:.0f} s", code="body_timeout") from None
        self.check_accepts()

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Counts one request as inside.

        Raises:
            Overloaded: the pod takes no requests now.
        """
        self.check_accepts()
        self._num_unfinished += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_unfinished -= 1
            if self._num_unfinished == 0:
                self._idle.set()

    def check_accepts(self) -> None:
        """Raise `Overloaded` when the pod takes no requests now."""
        if not self._accepts:
            raise self.refusal()

    def refusal(self) -> Overloaded:
        """What a request is told that is not taken in this state."""
        match self._state:
            case ServerState.STARTING:
                return Overloaded("the model is still loading; try again soon", code="starting")
            case ServerState.FAILED:
                return Overloaded(f"the engine failed: {self._because}; this server restarts", code="engine_failed")
            case _:
                return Overloaded("this server is shutting down; send the request again", code="draining")

    def ask_to_drain(self, *, timeout_s: float | None = None, skip_notice: bool = False) -> None:
        """Readiness goes false now; whoever awaits `drain_asked` does the rest. The first call decides."""
        if self._state in (ServerState.STARTING, ServerState.READY):
            self._move(ServerState.DRAINING, "draining: finishing the running requests, then exiting")
            self._drain_timeout_s = timeout_s
            self._skip_notice = skip_notice
        self._drain_asked.set()

    def hurry(self) -> None:
        """End the drain now, whatever is unfinished."""
        self._hurry.set()

    async def drain_asked(self) -> None:
        await self._drain_asked.wait()

    async def drain(self, notice_s: float, timeout_s: float) -> DrainEnd:
        """Wait until the pod may exit.

        During the notice new requests are still taken: endpoints of the Service learn of the drain with a delay.

        Args:
            notice_s: how long that is.
            timeout_s: how long running requests may take after it, unless the drain call gave another time.
        """
        hurried = not self._skip_notice and self._accepts and await _happens(self._hurry, notice_s)
        self._stop_accepting()
        if hurried:
            return DrainEnd.HURRIED
        limit_s = timeout_s if self._drain_timeout_s is None else self._drain_timeout_s
        idle = asyncio.ensure_future(self._idle.wait())
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait({idle, hurry}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if idle.done():
                return DrainEnd.EMPTY
            return DrainEnd.HURRIED if hurry.done() else DrainEnd.TIMEOUT
        finally:
            idle.cancel()
            hurry.cancel()

    async def emptied(self, within_s: float) -> bool:
        """Wait for the last request to leave, but no longer than so many seconds."""
        return await _happens(self._idle, within_s)


async def _happens(event: asyncio.Event, within_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), within_s)
    except TimeoutError:
        return event.is_set()
    return True
