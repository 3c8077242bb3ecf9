import importlib.util
from pathlib import Path

import pytest

from tidegate_server.bench.engine_sample import EngineSample
from tidegate_server.bench.plot import check_plot, plot_timeline
from tidegate_server.errors import InvalidSetting

SAMPLES = [
    EngineSample(at_s=0.0, num_running=0, num_waiting=4, kv_usage_ratio=0.0, preemptions={"recompute": 0}),
    EngineSample(at_s=0.5),  # a scrape that told nothing
    EngineSample(at_s=1.0, num_running=3, num_waiting=1, kv_usage_ratio=0.8, preemptions={"recompute": 2, "swap": 1}),
]


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_a_timeline_is_a_picture_of_the_kind_its_name_says(tmp_path: Path, name: str, start: bytes) -> None:
    path = tmp_path / name
    check_plot(path)
    plot_timeline(SAMPLES, "a title", path)
    assert path.read_bytes().startswith(start)


def test_the_picture_names_every_line(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    plot_timeline(SAMPLES, "a title", path)
    drawn = path.read_text()
    for name in ("running", "waiting", "recompute", "swap", "a title"):
        assert f"<!-- {name} -->" in drawn


def test_another_kind_of_file_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"^--plot: a\.doc is no picture"):
        check_plot(Path("a.doc"))


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidSetting, match=r"^--plot: matplotlib .* pip install 'tidegate\[bench\]'$"):
        check_plot(Path("a.png"))
