"""Builds the C library of the CPU kernels while the package is built, and puts it beside `library.py`.

Into the wheel, which then belongs to this platform; in an editable installation into the source tree. Where it cannot
be built the package goes without, see CMakeLists.txt; a mistake in our C stops the build.
"""

import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import cmake
import ninja
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "libtidegate_cpu.so"


class CpuKernels(BuildHookInterface):
    """What hatchling calls before and after it collects the files of a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sources = Path(self.root, "kernels", "tidegate_kernels", "cpu")
        # A new folder for each build: one that was kept names the isolated environment, and that is gone by then.
        self._folder = tempfile.TemporaryDirectory(prefix="tidegate-cpu-")
        built = _build(sources, Path(self._folder.name))
        if version == "editable":
            _replace(sources / LIBRARY, built)
        elif built is not None:
            build_data["force_include"][str(built)] = f"tidegate_kernels/cpu/{LIBRARY}"
            build_data["pure_python"] = False
            # No Python header is used, so any Python of this platform will do.
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._folder.cleanup()


def _build(sources: Path, folder: Path) -> Path | None:
    """The library, built in `folder`; None where it cannot be built."""
    program = Path(cmake.CMAKE_BIN_DIR, "cmake")
    build, installed = folder / "build", folder / "installed"
    make_program = f"-DCMAKE_MAKE_PROGRAM={Path(ninja.BIN_DIR, 'ninja')}"
    subprocess.run([program, "-S", sources, "-B", build, "-G", "Ninja", make_program], check=True)
    subprocess.run([program, "--build", build], check=True)
    subprocess.run([program, "--install", build, "--prefix", installed, "--strip"], check=True)
    library = installed / LIBRARY
    return library if library.exists() else None


def _replace(target: Path, built: Path | None) -> None:
    """Put what was built in the place of an older one; a process that has that one loaded keeps it."""
    if built is None:
        target.unlink(missing_ok=True)
        return
    new = target.with_name(f"{LIBRARY}.{os.getpid()}.so")
    shutil.copyfile(built, new)
    new.replace(target)
