"""Memory in large pages: zeroed, aligned, its parts apart, whatever their sizes."""

import gc
import mmap
import re
from pathlib import Path

import pytest
import torch

from tidegate_kernels.cpu.large_pages import CHUNK_BYTES, PAGE_BYTES, LargePages


def test_parts_are_zeroed_aligned_and_apart() -> None:
    memory = LargePages()
    parts = [memory.take(size) for size in (1, 63, 64, 65, PAGE_BYTES, CHUNK_BYTES // 2, CHUNK_BYTES, CHUNK_BYTES + 1)]
    for number, part in enumerate(parts, start=1):
        assert part.data_ptr() % 64 == 0
        assert not part.any()
        part.fill_(number)
    assert all(bool((part == number).all()) for number, part in enumerate(parts, start=1))


def test_a_part_as_large_as_a_page_begins_on_one_if_it_is_the_first() -> None:
    assert LargePages().take(PAGE_BYTES).data_ptr() % PAGE_BYTES == 0


def test_a_part_outlives_what_handed_it_out() -> None:
    memory = LargePages()
    part = memory.take(100)
    part.fill_(7)
    del memory
    gc.collect()
    assert part.tolist() == [7] * 100


def test_memory_is_private_and_asks_for_large_pages() -> None:
    part = LargePages().take(PAGE_BYTES)
    part.fill_(1)
    mapping, flags = mapping_of(part.data_ptr())
    # Shared memory would only get them where the whole system gives them to all shared memory.
    assert mapping.split()[1] == "rw-p"
    if Path("/sys/kernel/mm/transparent_hugepage").exists():
        assert "hg" in flags.split()


def mapping_of(address: int) -> tuple[str, str]:
    """The first and the last line of /proc/self/smaps on the mapping that holds an address."""
    first = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            first = line if int(match[1], 16) <= address < int(match[2], 16) else ""
        elif first and line.startswith("VmFlags:"):
            return first, line
    raise AssertionError(f"{address:#x} lies in no mapping")


def test_nothing_is_a_part_too() -> None:
    assert LargePages().take(0).shape == (0,)


def test_a_kernel_without_large_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Plain)
    assert torch.equal(LargePages().take(10), torch.zeros(10, dtype=torch.uint8))
