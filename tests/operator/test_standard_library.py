"""The repository has a folder named like a module of the standard library; that module must win."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_operator_from_the_repository_root_is_the_standard_librarys() -> None:
    code = "import operator, collections; print(operator.itemgetter(1)('ab'), operator.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    answer, where = done.stdout.split()
    assert answer == "b"
    assert REPOSITORY not in Path(where).parents


def test_neither_folder_called_operator_is_a_package() -> None:
    assert not (REPOSITORY / "operator" / "__init__.py").exists()
    assert not (REPOSITORY / "tests" / "operator" / "__init__.py").exists()
