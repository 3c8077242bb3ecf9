"""A blocking call in a thread that does not hold up the exit."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(call: Callable[[], T]) -> T:
    """Run the call and wait for it. Cancelled, the wait ends at once and the call is left to itself.

    `asyncio.to_thread` would not do for a download: the interpreter waits for its threads before it exits.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if result.done():  # nobody waits any more
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]  # without an error there is a T

    def run() -> None:
        try:
            value, error = call(), None
        except BaseException as caught:  # handed over to the one who waits
            value, error = None, caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="background", daemon=True).start()
    return await result
