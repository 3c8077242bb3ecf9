"""What the API needs of an engine: implemented by `engine.client`, and by a fake in the tests."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from tidegate_server.engine.messages import RequestOutput
from tidegate_server.engine.sampling_params import SamplingParams


class EnginePort(Protocol):
    """The engine as requests see it."""

    def submit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of one request, the last one with a finish reason. Closing the iterator aborts the request.

        Raises:
            EngineError: from the iterator, when the engine failed.
        """
        ...
