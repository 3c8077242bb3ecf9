"""Fields of a request that this server does not take: refused when they would change the answer, else noted."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import structlog

from tidegate_server.api.schema import (
    ChatCompletionRequest,
    ContentPart,
    GenerationRequest,
    Message,
    StreamOptions,
    decode_json,
)
from tidegate_server.errors import InvalidRequest

log = structlog.get_logger(__name__)

# Values that ask for nothing. `null` and empty values do so for every field. A name means the same wherever it stands.
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": (),
    "suffix": (),
    "tools": (),
    "tool_choice": ("none", "auto"),
    "functions": (),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "chat_template": (),
    "documents": (),
    "continue_final_message": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "prompt_logprobs": (),
    "allowed_token_ids": (),
    "bad_words": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "use_beam_search": (False,),
    "truncate_prompt_tokens": (),
    "prompt_embeds": (),
    # of messages
    "tool_calls": (),
    "refusal": (),
    # of stream_options
    "continuous_usage_stats": (False,),
}

# Fields that say nothing about the tokens of the answer.
_HARMLESS: Final = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "parallel_tool_calls",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "verbosity",
        "request_id",
        "annotations",
        "include_obfuscation",
    }
)

MAX_NOTED_FIELDS = 100  # a client that invents names must not fill the log or the memory

_Fields = dict[str, msgspec.Raw]


class UnknownFields:
    """Notes each unknown field name once."""

    def __init__(self) -> None:
        self._noted: set[str] = set()

    def check(self, body: bytes, request: GenerationRequest) -> None:
        """Look at the fields of a body that `request`, which was read from it, does not have.

        Raises:
            InvalidRequest: one of them would change the answer, so it may not be passed over; or it is no JSON.
        """
        fields = decode_json(body, _Fields)
        self._check(fields, "", type(request))
        if request.stream_options is not None:
            self._check(decode_json(fields["stream_options"], _Fields), "stream_options.", StreamOptions)
        if isinstance(request, ChatCompletionRequest):
            self._check_messages(request.messages, decode_json(fields["messages"], list[_Fields]))

    def _check_messages(self, messages: Sequence[Message], fields_of: Sequence[_Fields]) -> None:
        for index, (message, fields) in enumerate(zip(messages, fields_of, strict=True)):
            self._check(fields, f"messages[{index}].", Message)
            if isinstance(message.content, list):
                for number, part in enumerate(decode_json(fields["content"], list[_Fields])):
                    if message.content[number].type == "text":  # other kinds are refused as a whole
                        self._check(part, f"messages[{index}].content[{number}].", ContentPart)

    def _check(self, fields: _Fields, path: str, kind: type[msgspec.Struct]) -> None:
        for name, raw in fields.items():
            if name in kind.__struct_fields__:
                continue
            if name in _NEUTRAL:
                _refuse_unless_neutral(name, raw, path)
            elif name not in _HARMLESS and name not in self._noted and len(self._noted) < MAX_NOTED_FIELDS:
                self._noted.add(name)
                log.warning("request_field_ignored", field=name[:100], note="not known here; noted once")


def _refuse_unless_neutral(name: str, raw: msgspec.Raw, path: str) -> None:
    value = decode_json(raw, object, f"{path}{name}")
    if value in (None, "", [], {}) and not isinstance(value, bool | int | float):
        return
    if value in _NEUTRAL[name]:
        return
    raise InvalidRequest(
        f"{path}{name} is not supported by this server; leave the field out",
        param=f"{path}{name}",
        code="unsupported_parameter",
    )
