"""The server's error tree.

TidegateError
├── StartError            stops the start; one line on stderr, its code in the termination message
│   ├── InvalidSetting    a flag or environment variable has a wrong value
│   ├── ModelNotFound     no files behind the model URI
│   └── ModelNotSupported the files are there, but not a model this server runs
└── RequestError          answers one request with one status; nobody else notices
    ├── InvalidRequest    400
    │   ├── RequestTooLarge 413: the body is not read to its end
    │   └── RequestTooSlow  408: the body did not arrive in time
    ├── UnknownModel      404
    ├── Overloaded        503 with Retry-After: the queue is full, or starting, draining or failed
    ├── DeadlineExceeded  504: it waited too long, and nothing of it was computed
    └── EngineError       500: the engine failed this request
        └── BadLogits     the model gave this request no numbers to draw from
"""

from typing import Final

# When to come back, where nothing better is known: by then a busy pod has moved on, or another one is ready.
RETRY_AFTER_S: Final = 5


class TidegateError(Exception):
    """Anything this server reports with words meant for a person."""


class StartError(TidegateError):
    """The server cannot start; `code` goes to the termination message, where the operator reads it."""

    code = "StartFailed"


class InvalidSetting(StartError):
    code = "InvalidSetting"

    def __init__(self, flag: str, problem: str) -> None:
        super().__init__(f"{flag}: {problem}")
        self.flag = flag
        self.problem = problem


class ModelNotFound(StartError):
    code = "ModelNotFound"


class ModelNotSupported(StartError):
    code = "ModelNotSupported"


class RequestError(TidegateError):
    """Becomes OpenAI's error envelope: message, type, param and code."""

    status = 500
    type = "server_error"
    retry_after_s: int | None = None
    closes_connection = False
    default_code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = self.default_code if code is None else code


class InvalidRequest(RequestError):
    status = 400
    type = "invalid_request_error"


class RequestTooLarge(InvalidRequest):
    status = 413


class RequestTooSlow(InvalidRequest):
    status = 408
    closes_connection = True  # what may still come on it is the rest of a body


class UnknownModel(RequestError):
    status = 404
    type = "invalid_request_error"


class Overloaded(RequestError):
    status = 503
    type = "service_unavailable_error"
    closes_connection = True  # the next try opens a new one, which the Service may send to another pod

    def __init__(self, message: str, *, code: str, retry_after_s: int = RETRY_AFTER_S) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(RequestError):
    status = 504
    type = "timeout_error"
    default_code = "deadline_exceeded"


class EngineError(RequestError):
    status = 500
    default_code = "engine_error"


class BadLogits(EngineError):
    """A request's logits hold NaN, or nothing that can be drawn; the other requests of the step are sound."""

    def __init__(self, request_id: str, position: int) -> None:
        super().__init__(f"the model computed no usable numbers at token {position} of this request", code="bad_logits")
        self.request_id = request_id
