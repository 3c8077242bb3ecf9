"""The Makefile on a machine that has little."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_list_of_targets_needs_nothing_that_a_slim_debian_lacks(tmp_path: Path) -> None:
    for tool in ("make", "awk"):
        found = shutil.which(tool)
        assert found is not None, f"{tool} is not installed"
        (tmp_path / tool).symlink_to(found)
    shown = subprocess.run(
        [tmp_path / "make"], cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
    ).stdout
    assert "make serve" in shown
    assert all(line.startswith("  make ") for line in shown.splitlines())
