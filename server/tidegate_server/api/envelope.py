"""The one shape of every error reply."""

from collections.abc import Mapping

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidegate_server.api.schema import ErrorBody, ErrorReply
from tidegate_server.errors import RequestError

log = structlog.get_logger(__name__)


def error_reply(error: RequestError) -> ErrorReply:
    return ErrorReply(error=ErrorBody(message=error.message, type=error.type, param=error.param, code=error.code))


def json_response(payload: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(payload), status, headers, media_type="application/json")


def internal_error() -> RequestError:
    """What a client is told of a mistake of ours: that it was not theirs."""
    return RequestError("the server made a mistake while answering; its log says more", code="internal_error")


def error_response(error: RequestError) -> Response:
    """An error as an HTTP reply."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.closes_connection:
        headers["Connection"] = "close"
    return json_response(error_reply(error), error.status, headers)


async def on_request_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """What the router itself refuses: no such route, or not with this method."""
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            message = f"there is no {request.url.path} here; see /openapi.json for what there is"
        case 405:
            message = f"{request.url.path} does not take {request.method}"
        case _:
            message = str(error.detail)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    body = ErrorBody(message=message, type="invalid_request_error", param=None, code=code)
    return json_response(ErrorReply(error=body), error.status_code, error.headers)


async def on_unexpected_error(request: Request, error: Exception) -> Response:
    """A mistake of ours; uvicorn writes the traceback to the log."""
    log.error("request_crashed", path=request.url.path, error=repr(error), next="the client got a 500; others go on")
    return error_response(internal_error())
