"""tokenizer_config.json of a transformers checkpoint: which text each special token has."""

from collections.abc import Mapping
from pathlib import Path

from tidegate_server.json_file import read_json_object


def read_tokenizer_config(folder: Path) -> Mapping[str, object]:
    """What the file holds; nothing where there is none.

    Raises:
        ModelNotFound: it is damaged.
    """
    return read_json_object(folder / "tokenizer_config.json", missing_ok=True)


def special_token(config: Mapping[str, object], name: str) -> str | None:
    """The text of a token such as `eos_token`: written as it is, or as a table with the text in `content`."""
    token = config.get(name)
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
