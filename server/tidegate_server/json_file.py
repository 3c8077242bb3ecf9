"""A JSON file of a model's folder."""

import json
from pathlib import Path

from tidegate_server.errors import ModelNotFound


def read_json_object(path: Path, *, missing_ok: bool = False) -> dict[str, object]:
    """The object that the file holds.

    Args:
        missing_ok: give an empty object where there is no such file.

    Raises:
        ModelNotFound: it cannot be read, or holds something else.
    """
    try:
        decoded = json.loads(path.read_bytes())
    except OSError as error:
        if missing_ok and isinstance(error, FileNotFoundError):
            return {}
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelNotFound(f"{path} is truncated or damaged: it is no JSON; copy it again") from error
    if not isinstance(decoded, dict):
        raise ModelNotFound(f"{path} is damaged: it holds no JSON object; copy it again")
    return decoded
