"""Structured logging: an event and its facts, as text for people or as JSON, on standard error."""

import logging
import sys
from collections.abc import Sequence

import structlog
from structlog.types import Processor

# Libraries that tell at info what is none of an operator's business.
_QUIET = ("uvicorn", "uvicorn.error", "httpx", "httpcore", "huggingface_hub", "transformers", "asyncio")


def configure(log_format: str, level: str) -> None:
    """Set up logging for this process; the standard library's loggers go the same way.

    Args:
        log_format: `text` or `json`.
        level: `debug`, `info`, `warning` or `error`.
    """
    shared: Sequence[Processor] = (
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(log_format)],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _rendering(log_format: str) -> Sequence[Processor]:
    if log_format == "json":
        return (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())
    return (
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
        ),
    )
