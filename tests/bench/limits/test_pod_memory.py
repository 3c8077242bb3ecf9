import os
from pathlib import Path

import pytest

from tidegate_bench.limits.pod_memory import (
    Mapping,
    parse_smaps,
    peak_resident_bytes,
    read_mappings,
    resident_kv_bytes,
)

SMAPS = """\
55d0c0a00000-55d0c0a01000 r--p 00000000 fe:00 1234                       /usr/bin/a name with blanks
Size:                  4 kB
KernelPageSize:        4 kB
Rss:                   4 kB
Pss:                   1 kB
VmFlags: rd mr mw me
7f0000000000-7f0080000000 rw-p 00000000 00:00 0 
Size:            2097152 kB
Rss:                1024 kB
Pss:                1024 kB
"""
KV_BYTES = 1 << 30


def anonymous(size_bytes: int, resident_bytes: int) -> Mapping:
    return Mapping("", size_bytes, resident_bytes)


def test_ranges_are_read_with_their_file_size_and_resident_memory() -> None:
    assert parse_smaps(SMAPS) == [
        Mapping("/usr/bin/a name with blanks", 4096, 4096),
        Mapping("", 2 << 30, 1 << 20),
    ]


def test_the_cache_is_the_largest_range_without_a_file() -> None:
    mappings = [
        anonymous(KV_BYTES // 2, KV_BYTES // 2),
        anonymous(KV_BYTES, 12345),
        Mapping("/model", 4 * KV_BYTES, 4 * KV_BYTES),
    ]
    assert resident_kv_bytes(mappings, KV_BYTES) == 12345


def test_what_the_kernel_joined_to_the_cache_does_not_count_for_it() -> None:
    assert resident_kv_bytes([anonymous(KV_BYTES + 1000, 5000)], KV_BYTES) == 4000
    assert resident_kv_bytes([anonymous(KV_BYTES + 1000, 500)], KV_BYTES) == 0


def test_a_process_without_the_cache_holds_none_of_it() -> None:
    assert resident_kv_bytes([anonymous(KV_BYTES - 1, KV_BYTES - 1)], KV_BYTES) == 0


def test_this_process_has_memory_and_had_its_peak() -> None:
    resident = sum(mapping.resident_bytes for mapping in read_mappings(os.getpid()))
    assert resident > 0
    assert peak_resident_bytes(os.getpid()) > 0


def test_a_process_without_memory_of_its_own_has_no_peak(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name: kthreadd\n")
    assert peak_resident_bytes(7, tmp_path) == 0


@pytest.mark.parametrize("text", ["", "VmFlags: rd\n"])
def test_a_process_without_ranges_has_none(text: str) -> None:
    assert parse_smaps(text) == []
