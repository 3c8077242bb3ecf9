"""Keeps the engine's log short: no debug lines, of which the machines make thousands, and plain tracebacks."""

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True, scope="module")
def _quiet_log() -> Iterator[None]:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        processors=[structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)],
    )
    yield
    structlog.reset_defaults()
