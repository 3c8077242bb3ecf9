"""The prompts of a request as token ids, refused at the door when they cannot fit."""

from collections.abc import Sequence

from tidegate_server.api.sampling import Limits
from tidegate_server.api.schema import ChatCompletionRequest, CompletionRequest, Message
from tidegate_server.errors import InvalidRequest
from tidegate_server.text.chat_template import ChatMessage, ChatTemplate
from tidegate_server.text.tokenizer import Tokenizer

# "developer" is OpenAI's newer name for what the models' templates know as "system".
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def separate_prompts(request: CompletionRequest) -> list[str | tuple[int, ...]]:
    """The one or many prompts of a completion, each a text or token ids.

    Raises:
        InvalidRequest: no prompt, or mixed kinds.
    """
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest("prompt: at least one prompt is needed", param="prompt", code="invalid_value")
    texts = [item for item in prompt if isinstance(item, str)]
    numbers = [item for item in prompt if isinstance(item, int)]
    lists = [tuple(item) for item in prompt if isinstance(item, list)]
    if len(prompt) not in (len(texts), len(numbers), len(lists)):
        raise InvalidRequest(
            "prompt: give a text, a list of texts, a list of token ids or a list of such lists, and do not mix them",
            param="prompt",
            code="invalid_value",
        )
    return [tuple(numbers)] if numbers else [*texts, *lists]


def completion_prompts(
    prompts: Sequence[str | tuple[int, ...]], tokenizer: Tokenizer, limits: Limits
) -> list[Sequence[int]]:
    """Token ids of each prompt, in order.

    Raises:
        InvalidRequest: an unknown token id, or too long.
    """
    return [
        _token_ids(prompt, "prompt" if len(prompts) == 1 else f"prompt[{index}]", tokenizer, limits)
        for index, prompt in enumerate(prompts)
    ]


def _token_ids(prompt: str | tuple[int, ...], field: str, tokenizer: Tokenizer, limits: Limits) -> Sequence[int]:
    if isinstance(prompt, str):
        token_ids = _encoded(prompt, field, tokenizer, limits, add_special_tokens=True)
    else:
        token_ids = prompt
        _check_length(len(prompt), field, limits)
    _check_ids(token_ids, field, limits)
    return token_ids


def chat_prompt(
    request: ChatCompletionRequest, template: ChatTemplate | None, tokenizer: Tokenizer, limits: Limits
) -> Sequence[int]:
    """Token ids of the prompt that the model's chat template makes of the messages.

    Raises:
        InvalidRequest: the model has no template, a message is not plain text, or the prompt is too long.
    """
    if template is None:
        raise InvalidRequest(
            "this model has no chat template; use /v1/completions with a prompt in the model's own format",
            param="messages",
            code="no_chat_template",
        )
    if not request.messages:
        raise InvalidRequest("messages: at least one message is needed", param="messages", code="invalid_value")
    text = template.render(
        [_chat_message(message, f"messages[{index}]") for index, message in enumerate(request.messages)],
        add_generation_prompt=request.add_generation_prompt is not False,
        variables=request.chat_template_kwargs,
    )
    return _encoded(text, "messages", tokenizer, limits, add_special_tokens=False)


def _chat_message(message: Message, field: str) -> ChatMessage:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(
            f"{field}.role: {message.role!r} is not one of {', '.join(_ROLES)}",
            param=f"{field}.role",
            code="invalid_value",
        )
    return ChatMessage(role=role, content=_plain_text(message, field), name=message.name)


def _plain_text(message: Message, field: str) -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        raise InvalidRequest(
            f"{field}.content: a text is needed", param=f"{field}.content", code="missing_required_parameter"
        )
    texts = []
    for index, part in enumerate(message.content):
        path = f"{field}.content[{index}]"
        if part.type != "text":
            raise InvalidRequest(
                f"{path}.type: {part.type!r} is not supported; this server takes parts of type 'text'",
                param=f"{path}.type",
                code="unsupported_content",
            )
        if part.text is None:
            raise InvalidRequest(
                f"the field {path}.text is required", param=f"{path}.text", code="missing_required_parameter"
            )
        texts.append(part.text)
    return "\n".join(texts)


def _check_ids(token_ids: Sequence[int], field: str, limits: Limits) -> None:
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < limits.vocab_size:
            path = f"{field}[{index}]"
            raise InvalidRequest(
                f"{path}: {token_id} is not a token of this model; its ids go from 0 to {limits.vocab_size - 1}",
                param=path,
                code="invalid_value",
            )


def _encoded(text: str, field: str, tokenizer: Tokenizer, limits: Limits, *, add_special_tokens: bool) -> Sequence[int]:
    fewest = tokenizer.fewest_tokens(text)
    if fewest + 1 > limits.max_tokens:  # told by its length alone: a huge text would take seconds to encode
        raise _too_long(f"at least {fewest}", field, limits)
    token_ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    _check_length(len(token_ids), field, limits)
    return token_ids


def _check_length(num_tokens: int, field: str, limits: Limits) -> None:
    if num_tokens == 0:
        raise InvalidRequest(
            f"{field}: the prompt is empty; at least one token is needed", param=field, code="invalid_value"
        )
    if num_tokens + 1 > limits.max_tokens:
        raise _too_long(str(num_tokens), field, limits)


def _too_long(num_tokens: str, field: str, limits: Limits) -> InvalidRequest:
    if limits.max_model_len <= limits.kv_tokens:
        bound = f"this model's maximum context length is {limits.max_model_len} tokens"
        remedy = "shorten it"
    else:
        bound = f"this server's KV cache holds {limits.kv_tokens} tokens"
        remedy = "shorten it, or give the server more with --kv-cache-memory or --num-kv-blocks"
    return InvalidRequest(
        f"{bound}, but the prompt has {num_tokens} and needs room for at least one more; {remedy}",
        param=field,
        code="context_length_exceeded",
    )
