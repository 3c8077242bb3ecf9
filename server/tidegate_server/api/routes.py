"""The API port's routes: reads a request, checks it, and hands it to the generation."""

import asyncio
import time
import uuid
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from tidegate_contract.admin import ServerState
from tidegate_server.api.admission import Admission
from tidegate_server.api.body import unless_client_leaves
from tidegate_server.api.chat import chat_events, whole_chat
from tidegate_server.api.completions import completion_events, whole_completion
from tidegate_server.api.envelope import (
    error_response,
    json_response,
    on_http_error,
    on_request_error,
    on_unexpected_error,
)
from tidegate_server.api.generation import Generation, RunningGeneration, Service
from tidegate_server.api.lifecycle import Lifecycle
from tidegate_server.api.openapi import describe
from tidegate_server.api.prompts import chat_prompt, completion_prompts, separate_prompts
from tidegate_server.api.refusals import refusal_reason
from tidegate_server.api.request_terms import RequestTerms, TermsPolicy, request_terms
from tidegate_server.api.sampling import wanted_by_chat, wanted_by_completion
from tidegate_server.api.schema import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    ModelCard,
    ModelList,
    RequestT,
    decode_json,
)
from tidegate_server.api.sse import EventStream
from tidegate_server.api.unsupported import UnknownFields
from tidegate_server.errors import Overloaded, RequestError, UnknownModel
from tidegate_server.metrics import ServerMetrics
from tidegate_server.version import server_version

# Tokenizing less than this takes a millisecond or two; more of it would hold up the streams of others.
LARGE_BODY_BYTES = 4 << 10


@dataclass(slots=True)
class ApiState:
    """What the routes share; `service` comes when the model is loaded."""

    lifecycle: Lifecycle
    metrics: ServerMetrics
    terms_policy: TermsPolicy = field(default_factory=TermsPolicy)
    service: Service | None = None
    unknown_fields: UnknownFields = field(default_factory=UnknownFields)

    def ready_service(self) -> Service:
        """Raises `Overloaded` while there is none."""
        if self.service is None:
            self.lifecycle.check_accepts()
            raise Overloaded("the model is still loading; try again soon", code="starting")
        return self.service


def build_app(state: ApiState) -> ASGIApp:
    """The API port's application."""
    app = FastAPI(title="Tidegate", version=server_version(), docs_url=None, redoc_url=None, redirect_slashes=False)
    routes = _Routes(state)
    app.add_api_route("/v1/completions", routes.completions, methods=["POST"], response_model=None)
    app.add_api_route("/v1/chat/completions", routes.chat_completions, methods=["POST"], response_model=None)
    app.add_api_route("/v1/models", routes.models, methods=["GET"], response_model=None)
    app.add_api_route("/v1/models/{model_id:path}", routes.model, methods=["GET"], response_model=None)
    app.add_api_route("/health", routes.health, methods=["GET"], response_model=None)
    app.add_api_route("/version", routes.version, methods=["GET"], response_model=None)
    app.add_exception_handler(RequestError, on_request_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientDisconnect, _on_client_left)
    app.add_exception_handler(Exception, on_unexpected_error)
    describe(app)
    return Admission(app, state.lifecycle, state.metrics)


class _Routes:
    def __init__(self, state: ApiState) -> None:
        self._state = state

    async def completions(self, request: Request) -> Response:
        wish, running = await self._submitted(request, CompletionRequest, _completion)
        created = int(time.time())
        if wish.stream:
            return EventStream(completion_events(running, created, include_usage=_wants_usage(wish)), running.aclose)
        async with aclosing(running):
            return json_response(await unless_client_leaves(request, whole_completion(running, created)))

    async def chat_completions(self, request: Request) -> Response:
        wish, running = await self._submitted(request, ChatCompletionRequest, _chat)
        created = int(time.time())
        if wish.stream:
            return EventStream(chat_events(running, created, include_usage=_wants_usage(wish)), running.aclose)
        async with aclosing(running):
            return json_response(await unless_client_leaves(request, whole_chat(running, created)))

    async def models(self) -> Response:
        return json_response(ModelList(data=[_card(self._state.ready_service())]))

    async def model(self, model_id: str) -> Response:
        service = self._state.ready_service()
        _check_model(model_id, service)
        return json_response(_card(service))

    async def health(self) -> Response:
        lifecycle = self._state.lifecycle
        if lifecycle.state in (ServerState.READY, ServerState.DRAINING):
            return JSONResponse({"status": "ok"})
        return error_response(lifecycle.refusal())

    async def version(self) -> Response:
        return JSONResponse({"version": server_version()})

    async def _submitted(
        self, request: Request, kind: type[RequestT], prepare: Callable[[RequestT, Service, RequestTerms], Generation]
    ) -> tuple[RequestT, RunningGeneration]:
        """A request that was read and checked and that the engine has; one with something wrong counts as refused."""
        service = self._state.ready_service()
        body = await request.body()
        arrived_s = time.monotonic()

        def prepared() -> tuple[RequestT, Generation]:
            terms = request_terms(request.headers, self._state.terms_policy, arrived_s)
            wish = decode_json(body, kind)
            self._state.unknown_fields.check(body, wish)
            if wish.model is not None:
                _check_model(wish.model, service)
            return wish, prepare(wish, service, terms)

        try:
            wish, generation = prepared() if len(body) < LARGE_BODY_BYTES else await asyncio.to_thread(prepared)
            return wish, await generation.submit()
        except RequestError as error:
            self._state.metrics.request_refused(refusal_reason(error))
            raise


def _completion(wish: CompletionRequest, service: Service, terms: RequestTerms) -> Generation:
    given = separate_prompts(wish)
    wanted = wanted_by_completion(wish, len(given), service.limits)  # first, so that no thousand prompts are encoded
    prompts = completion_prompts(given, service.tokenizer, service.limits)
    return Generation(f"cmpl-{uuid.uuid4().hex}", service, prompts, wanted, terms)


def _chat(wish: ChatCompletionRequest, service: Service, terms: RequestTerms) -> Generation:
    wanted = wanted_by_chat(wish, service.limits)
    prompt = chat_prompt(wish, service.template, service.tokenizer, service.limits)
    return Generation(f"chatcmpl-{uuid.uuid4().hex}", service, [prompt], wanted, terms)


def _check_model(name: str, service: Service) -> None:
    if name != service.model_name:
        raise UnknownModel(
            f"the model {name!r} does not exist here; this server serves {service.model_name!r}",
            param="model",
            code="model_not_found",
        )


def _card(service: Service) -> ModelCard:
    return ModelCard(id=service.model_name, created=service.created, max_model_len=service.limits.max_tokens)


def _wants_usage(wish: GenerationRequest) -> bool:
    return wish.stream_options is not None and bool(wish.stream_options.include_usage)


async def _on_client_left(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; nginx' number for this end
