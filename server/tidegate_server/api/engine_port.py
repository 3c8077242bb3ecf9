"""What the API needs of an engine: implemented by `engine.client`, and by a fake in the tests."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from tidegate_server.engine.messages import RequestOutput
from tidegate_server.engine.sampling_params import SamplingParams


class OutputStream(Protocol):
    """One request's outputs; the last one has a finish reason. Closing it early aborts the request.

    Raises:
        RequestError: from the iteration, when the engine refused or failed the request.
    """

    def __aiter__(self) -> AsyncIterator[RequestOutput]: ...

    async def __anext__(self) -> RequestOutput: ...

    async def aclose(self) -> None: ...


class EnginePort(Protocol):
    """The engine as requests see it."""

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
    ) -> OutputStream:
        """Hand a request to the engine.

        Args:
            leader_id: of a request with the same prompt, submitted before; the prompt is computed once for both.
            tenant: whose share of the engine the request counts against.
            deadline_s: CLOCK_MONOTONIC; a request that was not begun by then fails.

        Raises:
            RequestError: it can never run, or the engine takes none.
        """
        ...
