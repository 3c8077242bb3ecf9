"""One page of shared memory with the engine's latest snapshot, so that probes never wait for the engine."""

import mmap
import os
import struct
import weakref
from dataclasses import fields
from operator import attrgetter
from typing import Final, Self
from zlib import crc32

from tidegate_contract.admin import ServerState
from tidegate_server.engine.snapshot import EngineSnapshot

_PAGE_BYTES: Final = 4096
_STATES: Final = tuple(ServerState)
_FIELDS: Final = fields(EngineSnapshot)
_values_of: Final = attrgetter(*(field.name for field in _FIELDS))
_VALUES: Final = struct.Struct("<" + "".join("d" if field.type is float else "q" for field in _FIELDS))
_VERSION: Final = struct.Struct("<Q")
_CHECKSUM: Final = struct.Struct("<I")
_RECORD_BYTES: Final = _VERSION.size + _VALUES.size + _CHECKSUM.size
_MAX_TRIES: Final = 100


class HeartbeatPage:
    """A snapshot that one process writes and any thread of another reads.

    The page holds two records and the version of the latest; version v lies in record v % 2. The writer fills the
    other record before it moves the version on, so a reader meets a half-written one only when the writer laps it; the
    checksum, which covers the version, shows that, on any memory model. A writer killed at any point leaves its last
    complete snapshot readable.

    The memory has no name: the page is handed on as a file descriptor and vanishes with its last user.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page = mmap.mmap(fd, _PAGE_BYTES)
        self._version = 0
        self._last_read = EngineSnapshot()

    @classmethod
    def create(cls) -> Self:
        """A new page with a `STARTING` snapshot."""
        fd = os.memfd_create("tidegate-heartbeat", os.MFD_CLOEXEC)
        os.ftruncate(fd, _PAGE_BYTES)
        page = cls(fd)
        weakref.finalize(page, os.close, fd)
        page.write(EngineSnapshot())
        return page

    @classmethod
    def attach(cls, fd: int) -> Self:
        """The page behind an inherited file descriptor; takes over where the last writer stopped."""
        page = cls(fd)
        (page._version,) = _VERSION.unpack_from(page._page, 0)
        return page

    def write(self, snapshot: EngineSnapshot) -> None:
        """Publish a snapshot; one writer at a time."""
        version = self._version + 1
        record = _VERSION.pack(version) + _encode(snapshot)
        record += _CHECKSUM.pack(crc32(record))
        offset = _record_offset(version)
        self._page[offset : offset + _RECORD_BYTES] = record
        _VERSION.pack_into(self._page, 0, version)
        self._version = version

    def read(self) -> EngineSnapshot:
        """The latest complete snapshot; a few microseconds, no system call, from any thread."""
        for _ in range(_MAX_TRIES):
            (version,) = _VERSION.unpack_from(self._page, 0)
            offset = _record_offset(version)
            record = self._page[offset : offset + _RECORD_BYTES]
            body, checksum = record[: -_CHECKSUM.size], record[-_CHECKSUM.size :]
            if _VERSION.unpack_from(body)[0] == version and _CHECKSUM.unpack(checksum)[0] == crc32(body):
                self._last_read = _decode(body[_VERSION.size :])
                break
        return self._last_read


def _record_offset(version: int) -> int:
    return 64 + (version % 2) * 1024  # apart from the version and from each other


def _encode(snapshot: EngineSnapshot) -> bytes:
    state, *numbers = _values_of(snapshot)
    return _VALUES.pack(_STATES.index(state), *numbers)


def _decode(values: bytes) -> EngineSnapshot:
    state, *numbers = _VALUES.unpack(values)
    return EngineSnapshot(_STATES[state], *numbers)
