"""The OpenAPI description of the API port, made from the wire types."""

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tidegate_server.api.schema import (
    ChatChunk,
    ChatCompletionRequest,
    ChatReply,
    CompletionReply,
    CompletionRequest,
    ErrorReply,
    ModelCard,
    ModelList,
)

_REF = "#/components/schemas/{name}"

# (path, method): the type of the body, of the reply, and of a streamed event's data.
_BODIES: dict[tuple[str, str], tuple[type | None, type | None, type | None]] = {
    ("/v1/completions", "post"): (CompletionRequest, CompletionReply, CompletionReply),
    ("/v1/chat/completions", "post"): (ChatCompletionRequest, ChatReply, ChatChunk),
    ("/v1/models", "get"): (None, ModelList, None),
    ("/v1/models/{model_id}", "get"): (None, ModelCard, None),
}


def describe(app: FastAPI) -> None:
    """Let `/openapi.json` tell the wire types, which FastAPI does not see because msgspec reads them."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # the way FastAPI documents for changing the description


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    kinds = [kind for row in _BODIES.values() for kind in row if kind is not None]
    _, components = msgspec.json.schema_components([*kinds, ErrorReply], ref_template=_REF)
    document.setdefault("components", {})["schemas"] = components
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            body, reply, chunk = _BODIES.get((path, method), (None, None, None))
            if body is not None:
                operation["requestBody"] = {"required": True, "content": {"application/json": _schema(body)}}
            if reply is not None:
                content = {"application/json": _schema(reply)}
                if chunk is not None:
                    content["text/event-stream"] = _schema(chunk)
                operation["responses"]["200"] = {"description": "The answer.", "content": content}
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = {
                "description": "What is wrong, in OpenAI's envelope.",
                "content": {"application/json": _schema(ErrorReply)},
            }
    return document


def _schema(kind: type) -> dict[str, Any]:
    return {"schema": {"$ref": _REF.format(name=kind.__name__)}}
