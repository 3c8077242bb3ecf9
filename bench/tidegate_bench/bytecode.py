"""Python's bytecode of this environment, compiled ahead as in our image: without it each start compiles torch again."""

import importlib.util
import subprocess
import sys
import sysconfig
from collections.abc import Sequence

OURS = ("tidegate_contract", "tidegate_kernels", "tidegate_server")


def compile_environment() -> None:
    """Compile what is not compiled yet, site-packages and our own packages: a minute at first, seconds afterwards.

    Installers leave it to the first import, which `PYTHONDONTWRITEBYTECODE` forbids to keep it.
    """
    command = [sys.executable, "-m", "compileall", "-q", "-j", "0", *_folders()]
    # A package may carry files of another Python's syntax; nobody imports those.
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _folders() -> Sequence[str]:
    specs = [spec for name in OURS if (spec := importlib.util.find_spec(name)) is not None]
    own = [folder for spec in specs for folder in spec.submodule_search_locations or ()]
    return (sysconfig.get_path("purelib"), *own)
