"""OpenAI-compatible wire types of the API port, and reading a request body into one of them."""

import re
from typing import TypeVar

import msgspec

from tidegate_server.errors import InvalidRequest

# Requests. A field that is absent and one that is null mean the same.


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What completions and chat completions have in common."""

    model: str | None = None  # None: the model this server serves
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # -1 and 0: all tokens
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = None  # lower is served first
    cache_salt: str | None = None  # prompts share cached blocks only within one salt


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]]  # a text, texts, token ids, or lists of token ids
    logprobs: int | None = None


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None


class ChatCompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, bool | int | float | str | None] | None = None


# Replies.


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class CompletionReply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole completion, or one chunk of its stream: OpenAI gives both the same shape."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    content: list[ChatLogprob]
    refusal: None = None


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatReply(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: str | None = None  # in a choice's first chunk only
    content: str | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    object: str = "chat.completion.chunk"


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    max_model_len: int  # tokens of prompt and output together
    object: str = "model"
    owned_by: str = "tidegate"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[ModelCard]
    object: str = "list"


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The one envelope of every error, in a reply's body or as the last event of a stream."""

    error: ErrorBody


# Reading.

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=GenerationRequest)

_PATH_IN_MESSAGE = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")


def decode_json(text: bytes | msgspec.Raw, kind: type[T], path: str = "") -> T:
    """A body, or a part of one: what was passed over as unknown may turn out to be no JSON when it is looked at.

    Args:
        path: of the part in the body.

    Raises:
        InvalidRequest: not JSON, or a field is missing or of the wrong type; `param` is the field's path.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error), path) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error


def _wrong_field(problem: str, path: str) -> InvalidRequest:
    found = _PATH_IN_MESSAGE.search(problem)
    path += found[1] if found else ""
    if missing := re.match(r"Object missing required field `([^`]+)`", problem):
        field = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidRequest(f"the field {field} is required", param=field, code="missing_required_parameter")
    words = _PATH_IN_MESSAGE.sub("", problem)
    message = f"{path}: {words}" if path else f"the body: {words}"
    return InvalidRequest(message, param=path or None, code="invalid_type")
