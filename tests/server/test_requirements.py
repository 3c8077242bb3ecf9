"""What our packages import is in the requirement files that the images are built from."""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {"tidegate_contract", "tidegate_kernels", "tidegate_server", "tidegate_operator"}
# Extras that the images go without: whoever misses one is told to install it, by the name of its extra.
OPTIONAL = {"matplotlib"}


@pytest.mark.parametrize(
    ("requirements", "packages"),
    [
        ("server.txt", ("contract/tidegate_contract", "kernels/tidegate_kernels", "server/tidegate_server")),
        ("operator.txt", ("contract/tidegate_contract", "operator/tidegate_operator")),
    ],
)
def test_everything_imported_is_pinned_for_the_image(requirements: str, packages: Sequence[str]) -> None:
    pinned = {
        normalised(match[1])
        for match in re.finditer(r"^([A-Za-z0-9._-]+)==", (ROOT / "requirements" / requirements).read_text(), re.M)
    }
    providers = packages_distributions()
    missing = {
        f"{file.relative_to(ROOT)}: {module}"
        for package in packages
        for file in (ROOT / package).rglob("*.py")
        for module in imported_modules(file)
        if not pinned & {normalised(name) for name in providers.get(module, ())}
    }
    assert not missing


def imported_modules(file: Path) -> Iterator[str]:
    """Top-level modules of others that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names=names):
                modules = [name.name for name in names]
            case ast.ImportFrom(module=str(module), level=0):
                modules = [module]
            case _:
                continue
        for module in modules:
            top = module.partition(".")[0]
            if top not in OURS | OPTIONAL and top not in sys.stdlib_module_names:
                yield top


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
