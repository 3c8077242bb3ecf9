"""What can go wrong while the engine runs, by kind, and the errors that say more than that something did."""

from enum import StrEnum

from tidegate_server.engine.batch import RequestId


class FaultKind(StrEnum):
    """What a fault counts as; the values are labels of `tidegate_faults_total`."""

    REQUEST = "request"  # a request that could not be taken in, prepared, or computed even alone
    BAD_LOGITS = "bad_logits"  # a request whose logits are no numbers
    OUT_OF_MEMORY = "out_of_memory"  # a forward pass without memory
    STEP = "step"  # a forward pass over several requests that failed, whosever fault it was
    COPY = "copy"  # a copy of KV blocks that failed


class OutOfMemory(Exception):
    """A forward pass found no memory for its intermediate results; a smaller one may."""


class UnpreparedRequest(Exception):
    """One request of a batch could not be prepared for the forward pass; nothing is wrong with the others."""

    def __init__(self, request_id: RequestId, problem: str) -> None:
        super().__init__(problem)
        self.request_id = request_id


def one_line(error: BaseException) -> str:
    """An exception as one line: its type, and the first line of its message."""
    message = str(error).strip()
    name = type(error).__name__
    return f"{name}: {message.splitlines()[0]}" if message else name
