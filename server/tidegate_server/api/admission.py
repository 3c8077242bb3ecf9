"""The door of the API: counts who is inside, and turns away with a reason while the pod cannot serve."""

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate_contract.admin import ServerState
from tidegate_server.api.body import BODY_TIMEOUT_S, read_body, replayed
from tidegate_server.api.envelope import error_response
from tidegate_server.api.lifecycle import Lifecycle
from tidegate_server.api.refusals import refusal_reason
from tidegate_server.errors import RequestError
from tidegate_server.metrics import ServerMetrics

GENERATION_PATHS = frozenset({"/v1/completions", "/v1/chat/completions"})


class Admission:
    """An ASGI layer around the routes.

    It stands outside them so that a request counts as inside from the last byte of its body, which a client may take
    its time to send, until the last byte of its reply was sent, whichever way it ends.
    """

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle, metrics: ServerMetrics) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        reply = self._closing(send)
        if scope["method"] != "POST" or scope["path"] not in GENERATION_PATHS:
            await self._app(scope, receive, reply)
            return
        try:
            async with self._lifecycle.arriving(BODY_TIMEOUT_S):
                body = await read_body(receive)
        except ClientDisconnect:
            return
        except RequestError as refusal:
            self._metrics.request_refused(refusal_reason(refusal))
            await error_response(refusal)(scope, receive, reply)
            return
        with self._lifecycle.admitted():
            await self._app(scope, replayed(body, receive), reply)

    def _closing(self, send: Send) -> Send:
        """While draining every reply closes its connection, so that clients with kept ones find another pod."""

        async def reply(message: Message) -> None:
            if message["type"] == "http.response.start" and self._lifecycle.state is ServerState.DRAINING:
                headers = [pair for pair in message.get("headers", ()) if pair[0].lower() != b"connection"]
                message["headers"] = [*headers, (b"connection", b"close")]
            await send(message)

        return reply
