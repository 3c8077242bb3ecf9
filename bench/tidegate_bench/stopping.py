"""SIGTERM ends a run as Ctrl-C does, through every `finally`, so that no server is left behind."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import TypeVar

Result = TypeVar("Result")


async def until_told_to_stop(work: Coroutine[None, None, Result]) -> Result:
    """Do the work.

    Raises:
        asyncio.CancelledError: SIGTERM came first; the work has cleaned up.
    """
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work
