"""Virtual environments for peers, outside the repository, made by uv and kept between runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tidegate_bench.launch import BenchError


def cache_folder() -> Path:
    """Where peers and exported models are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tidegate" / "bench"


def ensure_venv(
    name: str, packages: tuple[str, ...], *, override: tuple[str, ...] = (), remove: tuple[str, ...] = ()
) -> Path:
    """Make a virtual environment that holds `packages`; one made earlier for the same packages is kept.

    Args:
        override: versions to take whatever the packages themselves ask for.
        remove: packages to take out again afterwards.

    Returns:
        Its Python.

    Raises:
        BenchError: uv is missing, or could not install them.
    """
    folder = cache_folder() / name
    python = folder / "venv" / "bin" / "python"
    recipe = "\n".join(["install", *packages, "override", *override, "remove", *remove, ""])
    done = folder / "installed.txt"
    if python.exists() and done.exists() and done.read_text() == recipe:
        return python
    folder.mkdir(parents=True, exist_ok=True)
    done.unlink(missing_ok=True)
    override_file = folder / "override.txt"
    override_file.write_text("\n".join(override) + "\n")
    # This Python again: uv would look for another version on the network.
    _uv("venv", "--clear", "--python", sys.executable, str(folder / "venv"))
    # Compiled now, as in an image: or its first start, which is measured, would compile it.
    _uv("pip", "install", "--python", str(python), "--compile-bytecode", "--override", str(override_file), *packages)
    if remove:
        _uv("pip", "uninstall", "--python", str(python), *remove)
    done.write_text(recipe)
    return python


def installed_version(python: Path, package: str) -> str:
    """The version of a package in a virtual environment."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def _uv(*arguments: str) -> None:
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise BenchError("uv is neither beside this Python nor on the PATH: it makes the peers' environments")
    try:
        subprocess.run([uv, "--quiet", *arguments], check=True)
    except subprocess.CalledProcessError as failure:
        raise BenchError(
            f"uv {arguments[0]} failed with exit status {failure.returncode}; its message is above"
        ) from None
