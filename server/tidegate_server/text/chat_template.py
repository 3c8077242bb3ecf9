"""Messages to one prompt: renders the chat template that a model was trained with."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tidegate_server.errors import InvalidRequest, ModelNotFound, ModelNotSupported
from tidegate_server.gguf_file import GgufFile
from tidegate_server.tokenizer_config import read_tokenizer_config, special_token

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str
    name: str | None = None


class _Template(Protocol):
    def render(self, context: Mapping[str, object]) -> str: ...


class ChatTemplate:
    """A model's chat template, compiled; it runs in a sandbox, because it comes with the model's files."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """
        Args:
            source: Jinja text.
            special_tokens: `bos_token` and its like, which templates write out.

        Raises:
            ModelNotSupported: the template is not valid Jinja.
        """
        self._special_tokens = dict(special_tokens)
        try:
            self._template: _Template = _environment().from_string(source)
        except TemplateError as error:
            raise ModelNotSupported(f"the model's chat template cannot be compiled: {error}") from error

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt; tokenize it without adding special tokens.

        Raises:
            InvalidRequest: the template refuses these messages.
        """
        turns = [
            {"role": message.role, "content": message.content}
            | ({"name": message.name} if message.name is not None else {})
            for message in messages
        ]
        context = self._special_tokens | dict(variables or {})
        try:
            return self._template.render(
                context | {"messages": turns, "tools": None, "add_generation_prompt": add_generation_prompt}
            )
        except (TemplateError, TypeError, ValueError, KeyError, OverflowError) as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error


class _GenerationBlock(Extension):
    """`{% generation %}`: some templates mark the assistant's part for training; here it is plain text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance variable

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """The dialect that templates are written for: block lines leave no blank lines, and four helpers exist."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
    )

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **options: bool) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)  # type: ignore[arg-type]

    helpers: dict[str, Callable[..., object]] = {
        "raise_exception": raise_exception,
        "strftime_now": lambda layout: datetime.now().strftime(layout),
    }
    environment.globals.update(helpers)
    environment.filters["tojson"] = to_json
    return environment


def load_gguf_template(gguf: GgufFile) -> ChatTemplate | None:
    """The template inside a GGUF file; None when it holds none."""
    source = gguf.metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        return None
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    special_tokens = {}
    for name, key in zip(SPECIAL_TOKEN_NAMES, ("bos", "eos", "unknown", "padding"), strict=True):
        token_id = gguf.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(tokens, list) and isinstance(token_id, int) and 0 <= token_id < len(tokens):
            special_tokens[name] = str(tokens[token_id])
    return ChatTemplate(source, special_tokens)


def load_folder_template(folder: Path) -> ChatTemplate | None:
    """The template of a folder of safetensors: chat_template.jinja, or the one in tokenizer_config.json.

    Raises:
        ModelNotFound: a file is damaged.
        ModelNotSupported: the template is not Jinja.
    """
    config = read_tokenizer_config(folder)
    source = _source_in_file(folder / "chat_template.jinja") or _source_in(config)
    if source is None:
        return None
    special_tokens = {name: text for name in SPECIAL_TOKEN_NAMES if (text := special_token(config, name)) is not None}
    return ChatTemplate(source, special_tokens)


def _source_in_file(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ModelNotFound(f"{path} is damaged: it is no UTF-8; copy it again") from error


def _source_in(config: Mapping[str, object]) -> str | None:
    match config.get("chat_template"):
        case str(source):
            return source
        case list(named):  # several templates, each with a name
            entries = [entry for entry in named if isinstance(entry, dict)]
            default = next((entry.get("template") for entry in entries if entry.get("name") == "default"), None)
            return default if isinstance(default, str) else None
        case _:
            return None
