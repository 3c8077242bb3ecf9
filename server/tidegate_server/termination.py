"""The termination message: why the container stopped, where Kubernetes and the operator look for it."""

import json
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

MAX_BYTES = 4096  # Kubernetes keeps no more
MAX_MESSAGE_CHARACTERS = 1000


def leave_message(path: Path, code: str, message: str) -> None:
    """Write the reason as `{"code": …, "message": …}`, if the file is there; outside Kubernetes it is not."""
    text = json.dumps({"code": code, "message": message[:MAX_MESSAGE_CHARACTERS]}, ensure_ascii=False)
    try:
        if path.is_file():
            # A file name may hold bytes that are no UTF-8.
            path.write_bytes(text.encode(errors="backslashreplace")[:MAX_BYTES])
    except OSError as error:
        log.warning("termination_message_lost", path=str(path), reason=str(error), next="the log has it too")
