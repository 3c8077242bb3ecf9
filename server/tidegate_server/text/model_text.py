"""The text side of a model: its tokenizer and chat template, from the model's files."""

from dataclasses import dataclass

from tidegate_server.gguf_file import open_gguf
from tidegate_server.model_source import ModelFiles, ModelFormat
from tidegate_server.text.chat_template import ChatTemplate, load_folder_template, load_gguf_template
from tidegate_server.text.tokenizer import Tokenizer, load_folder_tokenizer, load_gguf_tokenizer


@dataclass(frozen=True, slots=True)
class ModelText:
    tokenizer: Tokenizer
    template: ChatTemplate | None  # None: the model has none, so it completes prompts only


def load_model_text(files: ModelFiles) -> ModelText:
    """Read what turns text into token ids and back.

    Raises:
        StartError: it is missing or damaged, or of a kind this server does not read.
    """
    match files.format:
        case ModelFormat.GGUF:
            gguf = open_gguf(files.path)
            return ModelText(load_gguf_tokenizer(gguf), load_gguf_template(gguf))
        case ModelFormat.SAFETENSORS:
            return ModelText(load_folder_tokenizer(files.path), load_folder_template(files.path))
