"""How far a run is, on standard error: a bar on a terminal, a line now and then elsewhere."""

from typing import Protocol, TextIO

from tqdm import tqdm

from tidegate_server.bench.record import Outcome, RequestRecord

_NUM_LINES = 10


class Progress(Protocol):
    """Told of each request's end."""

    def request_ended(self, record: RequestRecord) -> None: ...

    def close(self) -> None: ...


def show_progress(num_requests: int, stream: TextIO) -> Progress:
    """What suits the stream."""
    return ProgressBar(num_requests, stream) if stream.isatty() else ProgressLines(num_requests, stream)


class ProgressBar:
    """Requests that ended, of all; failed ones beside it."""

    def __init__(self, num_requests: int, stream: TextIO) -> None:
        self._bar = tqdm(total=num_requests, unit="request", file=stream, dynamic_ncols=True)
        self._num_failed = 0

    def request_ended(self, record: RequestRecord) -> None:
        if record.outcome is Outcome.UNFINISHED:
            return
        if record.outcome is Outcome.FAILED:
            self._num_failed += 1
            self._bar.set_postfix_str(f"{self._num_failed} failed", refresh=False)
        self._bar.update(1)

    def close(self) -> None:
        self._bar.close()


class ProgressLines:
    """At most `_NUM_LINES` lines over a whole run."""

    def __init__(self, num_requests: int, stream: TextIO) -> None:
        self._num_requests = num_requests
        self._stream = stream
        self._num_ended = 0
        self._num_failed = 0
        self._num_told = 0  # lines so far

    def request_ended(self, record: RequestRecord) -> None:
        if record.outcome is Outcome.UNFINISHED:
            return
        self._num_ended += 1
        self._num_failed += record.outcome is Outcome.FAILED
        due = self._num_ended * _NUM_LINES // self._num_requests
        if due > self._num_told:
            self._num_told = due
            failed = f", {self._num_failed} failed" if self._num_failed else ""
            self._stream.write(
                f"bench: {self._num_ended} of {self._num_requests} requests after {record.end_s:.1f} s{failed}\n"
            )
            self._stream.flush()

    def close(self) -> None:
        pass
