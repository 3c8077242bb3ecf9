from pathlib import Path

import pytest

from tidegate_bench.limits.quota import NoQuota, cpu_quota, quota_settings


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_version_1_gets_a_quota_within_a_period(tmp_path: Path) -> None:
    root = tree(tmp_path, {"cpu/cpu.cfs_quota_us": "-1", "unified/cgroup.subtree_control": ""})
    settings = quota_settings(root, 1.5)
    assert {file.name: text.strip() for file, text in settings.items()} == {
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "150000",
    }
    [group] = {file.parent for file in settings}
    assert group.parent == root / "cpu"


def test_version_2_gets_both_in_one_file(tmp_path: Path) -> None:
    root = tree(tmp_path, {"cgroup.subtree_control": "memory cpu pids\n"})
    [(file, text)] = quota_settings(root, 0.5).items()
    assert (file.name, text.strip(), file.parent.parent) == ("cpu.max", "50000 100000", root)


@pytest.mark.parametrize(
    "files", [{}, {"cgroup.subtree_control": "memory pids cpuset\n"}], ids=["no cgroups", "no cpu controller"]
)
def test_without_a_controller_it_says_so(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(NoQuota, match="no cpu controller"):
        quota_settings(tree(tmp_path, files), 1.5)


def test_a_group_that_cannot_be_made_says_where(tmp_path: Path) -> None:
    root = tree(tmp_path, {"cgroup.subtree_control": "cpu"})
    [file] = quota_settings(root, 1.5)
    file.parent.mkdir()  # there already
    with pytest.raises(NoQuota, match="no cgroup can be made in"), cpu_quota(1.5, root):
        raise AssertionError("there is no group")
