"""Blocking calls in threads that nobody has to wait for."""

import asyncio
import threading

import pytest

from tidegate_server.background import in_daemon_thread


def test_the_result_and_the_error_come_back() -> None:
    assert asyncio.run(in_daemon_thread(lambda: 5)) == 5
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_daemon_thread(lambda: 1 // 0))


def test_a_call_that_hangs_does_not_hold_up_the_end() -> None:
    release = threading.Event()

    async def give_up() -> None:
        waiting = asyncio.create_task(in_daemon_thread(lambda: release.wait(600)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(give_up())
    assert not release.is_set()
    release.set()
