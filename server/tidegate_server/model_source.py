"""A model URI to the files it names: `builtin://`, `hf://`, `file://` or a plain path."""

from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path


class ModelFormat(Enum):
    SAFETENSORS = auto()  # a folder: config.json, *.safetensors, tokenizer files
    GGUF = auto()  # one file that holds weights, config, tokenizer and chat template


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model lies on this machine."""

    uri: str  # as given
    path: Path  # the folder, or the .gguf file
    format: ModelFormat
    name: str  # the served name, unless the settings give another
    revision: str  # enters the prefix cache's root hash


def resolve_model(uri: str) -> ModelFiles:
    """Find a model's files, downloading them for `hf://`.

    Raises:
        ModelNotFound: nothing there, gated, or the download failed; one line that says what to change.
    """
    raise NotImplementedError
