import os
import threading
from dataclasses import fields

import pytest

from tidegate_contract.admin import ServerState
from tidegate_server.engine.heartbeat import HeartbeatPage
from tidegate_server.engine.snapshot import EngineSnapshot


def uniform(number: int) -> EngineSnapshot:
    """Every field says the same, so that a torn one shows."""
    values = {field.name: field.type(number) for field in fields(EngineSnapshot) if field.type in (int, float)}
    return EngineSnapshot(state=ServerState.READY, **values)


def test_a_new_page_says_starting() -> None:
    assert HeartbeatPage.create().read() == EngineSnapshot()


def test_what_was_written_is_read_through_another_mapping() -> None:
    page = HeartbeatPage.create()
    other = HeartbeatPage.attach(page.fd)
    for number in range(5):
        page.write(uniform(number))
        assert other.read() == uniform(number)


@pytest.mark.parametrize("state", ServerState)
def test_every_state_survives(state: ServerState) -> None:
    page = HeartbeatPage.create()
    page.write(EngineSnapshot(state=state, queue_time_p90_s=0.25))
    assert page.read() == EngineSnapshot(state=state, queue_time_p90_s=0.25)


def test_a_snapshot_is_never_torn_while_another_thread_writes() -> None:
    page = HeartbeatPage.create()
    reader = HeartbeatPage.attach(page.fd)
    page.write(uniform(0))
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            page.write(uniform(number))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        steps = []
        for _ in range(3000):
            snapshot = reader.read()
            assert snapshot == uniform(snapshot.step)
            steps.append(snapshot.step)
    finally:
        stop.set()
        writer.join()
    assert steps == sorted(steps)


def _write_forever(fd: int) -> None:
    page = HeartbeatPage.attach(fd)
    number = 1
    while True:
        number += 1
        page.write(uniform(number))


def test_a_snapshot_is_never_torn_across_processes_nor_lost_when_the_writer_is_killed() -> None:
    page = HeartbeatPage.create()
    page.write(uniform(1))
    pid = os.fork()
    if pid == 0:
        try:
            _write_forever(page.fd)
        finally:
            os._exit(1)
    try:
        latest = 0
        while latest < 2000:
            snapshot = page.read()
            assert snapshot == uniform(snapshot.step)
            assert snapshot.step >= latest
            latest = snapshot.step
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    last = page.read()
    assert last == uniform(last.step)
    assert last.step >= latest


def test_a_half_written_record_is_not_read() -> None:
    page = HeartbeatPage.create()
    page.write(uniform(3))
    # The writer dies after half a record, before it moves the version on.
    offset = 64 + 1024 * ((page._version + 1) % 2)
    page._page[offset : offset + 40] = b"x" * 40
    assert page.read() == uniform(3)
    assert HeartbeatPage.attach(page.fd).read() == uniform(3)
