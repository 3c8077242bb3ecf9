"""Where copies between device and host run, and what waits for them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class CopyStream:
    """A CUDA stream beside the one that computes, ordered against it by events; the caller waits in `wait` only.

    On a CPU a copy is done when its call returns, and nothing here does anything.
    """

    def __init__(self, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if is_cuda else None  # type: ignore[no-untyped-call]  # torch leaves it untyped

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Copies that are asked for inside come after all that was computed so far."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> torch.cuda.Event | None:
        """The end of the copies so far."""
        return None if self._stream is None else self._stream.record_event()

    def hold_computing(self, until: torch.cuda.Event | None) -> None:
        """Let all that is computed from now on come after a mark."""
        if self._stream is not None and until is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(until)

    def wait(self) -> None:
        """Return once all copies so far are done."""
        if self._stream is not None:
            self._stream.synchronize()
