"""Log lines: an event and its facts, in both formats, whoever writes them."""

import json
import subprocess
import sys

# In a process of its own: logging is set up once per process.
SCRIPT = """
import logging, structlog
from tidegate_server import log
log.configure({format!r}, "info")
log_ = structlog.get_logger("tidegate_server.somewhere")
log_.info("request_finished", num_output_tokens=64)
log_.debug("too_much")
logging.getLogger("a.library").warning("of %s", "theirs")
logging.getLogger("uvicorn.error").info("chatter")
try:
    1 / 0
except ZeroDivisionError as error:
    log_.error("crashed", exc_info=error)
"""


def lines(log_format: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(format=log_format)], capture_output=True, text=True, check=True
    )
    assert result.stdout == ""
    return result.stderr.splitlines()


def test_json_lines_are_one_document_each() -> None:
    finished, theirs, crashed = (json.loads(line) for line in lines("json"))
    assert (finished["event"], finished["num_output_tokens"], finished["level"]) == ("request_finished", 64, "info")
    assert finished["logger"] == "tidegate_server.somewhere"
    assert finished["timestamp"].endswith("Z")
    assert (theirs["event"], theirs["level"]) == ("of theirs", "warning")
    assert "ZeroDivisionError" in crashed["exception"]


def test_text_lines_hold_the_same() -> None:
    finished, theirs, *crash = lines("text")
    assert "request_finished" in finished
    assert "num_output_tokens=64" in finished
    assert "of theirs" in theirs
    assert "ZeroDivisionError" in crash[-1]
    assert not any("chatter" in line or "too_much" in line for line in (finished, theirs, *crash))
