"""Fields of a request that this server does not take: refused when they would change the answer, else noted."""

from collections.abc import Mapping
from typing import Final

import msgspec
import structlog

from tidegate_server.api.schema import GenerationRequest
from tidegate_server.errors import InvalidRequest

log = structlog.get_logger(__name__)

# Values that ask for nothing. `null` and empty values do so for every field.
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
    }
)

MAX_NOTED_FIELDS = 100  # a client that invents names must not fill the log or the memory


class UnknownFields:
    """Notes each unknown field name once."""

    def __init__(self) -> None:
        self._noted: set[str] = set()

    def check(self, given: Mapping[str, msgspec.Raw], kind: type[GenerationRequest]) -> None:
        """Look at the fields of one body that `kind` does not have.

        Raises:
            InvalidRequest: one of them would change the answer, so it may not be passed over.
        """
        for name in given.keys() - set(kind.__struct_fields__):
            if name in _NEUTRAL:
                _refuse_unless_neutral(name, given[name])
            elif name not in _HARMLESS and name not in self._noted and len(self._noted) < MAX_NOTED_FIELDS:
                self._noted.add(name)
                log.warning("request_field_ignored", field=name[:100], note="not known here; noted once")


def _refuse_unless_neutral(name: str, raw: msgspec.Raw) -> None:
    value: object = msgspec.json.decode(raw)
    if value in (None, "", [], {}) and not isinstance(value, bool | int | float):
        return
    if value in _NEUTRAL[name]:
        return
    raise InvalidRequest(
        f"{name} is not supported by this server; leave the field out", param=name, code="unsupported_parameter"
    )
