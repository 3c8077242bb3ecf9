"""The C library of the CPU kernels, once for each instruction set that this machine has."""

from collections.abc import Iterator

import pytest

from tidegate_kernels.cpu.library import ISAS, Library, load_library, missing_because


@pytest.fixture
def loaded() -> Library:
    """The library, not started."""
    library = load_library()
    if library is None:
        pytest.skip(missing_because())
    return library


@pytest.fixture(params=ISAS)
def library(loaded: Library, request: pytest.FixtureRequest) -> Iterator[Library]:
    """The library, started with one instruction set on two threads."""
    isa = str(request.param)
    if isa not in loaded.supported_isas():
        pytest.skip(f"this machine has no {isa}")
    loaded.start(isa, num_threads=2, cpus=None)
    yield loaded
    loaded.stop()
