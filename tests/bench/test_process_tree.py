from pathlib import Path

import pytest

from tidegate_bench.process_tree import ProcessTree, descendants, parse_stat


def stat_line(pid: int, parent: int, *, name: str = "python", state: str = "S", ticks: int = 0, start: int = 5) -> str:
    """A line of /proc/<pid>/stat: the fields not asked for are zeros."""
    fields = ["0"] * 50
    fields[0], fields[1] = state, str(parent)
    fields[11], fields[12], fields[13], fields[14] = str(ticks), "1", "2", "3"
    fields[19], fields[21] = str(start), "100"
    return f"{pid} ({name}) {' '.join(fields)}\n"


class FakeProc:
    """A /proc of a few processes that may come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "uptime").write_text("no process\n")

    def add(self, line: str) -> None:
        process = self.folder / line.split(" ", 1)[0]
        process.mkdir(exist_ok=True)
        (process / "stat").write_text(line)

    def end(self, pid: int) -> None:
        (self.folder / str(pid) / "stat").unlink()


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


@pytest.mark.parametrize("name", ["python", "a (b) c", "x) S 1 ("])
def test_name_may_hold_blanks_and_brackets(name: str) -> None:
    stat = parse_stat(stat_line(12, 7, name=name, ticks=40))
    assert (stat.pid, stat.parent_pid, stat.state) == (12, 7, "S")
    assert (stat.cpu_ticks, stat.dead_children_ticks, stat.start_ticks, stat.rss_pages) == (41, 5, 5, 100)


def test_descendants_are_the_root_and_all_below_it() -> None:
    stats = [parse_stat(stat_line(pid, parent)) for pid, parent in [(4, 3), (1, 0), (2, 1), (3, 2), (9, 1)]]
    assert [stat.pid for stat in descendants(stats, 2)] == [2, 3, 4]
    assert descendants(stats, 77) == []


def test_memory_is_that_of_the_whole_tree_and_its_peak_is_kept(proc: FakeProc) -> None:
    proc.add(stat_line(10, 1))
    proc.add(stat_line(11, 10))
    proc.add(stat_line(99, 1))
    tree = ProcessTree(10, proc.folder)
    both = tree.rss_bytes()
    proc.end(11)
    assert tree.rss_bytes() == both / 2
    assert tree.peak_rss_bytes == both


def test_child_whose_parent_ended_stays_in_the_tree(proc: FakeProc) -> None:
    proc.add(stat_line(10, 1))
    proc.add(stat_line(11, 10))
    tree = ProcessTree(10, proc.folder)
    tree.living()
    proc.end(10)
    proc.add(stat_line(11, 1))
    proc.add(stat_line(12, 11))
    assert {stat.pid for stat in tree.living()} == {11, 12}


def test_a_number_given_again_is_another_process(proc: FakeProc) -> None:
    proc.add(stat_line(10, 1))
    proc.add(stat_line(11, 10, start=5))
    tree = ProcessTree(10, proc.folder)
    tree.living()
    proc.add(stat_line(11, 1, start=800))
    assert {stat.pid for stat in tree.living()} == {10}


def test_dead_processes_that_nobody_waited_for_are_not_living(proc: FakeProc) -> None:
    proc.add(stat_line(10, 1))
    proc.add(stat_line(11, 10, state="Z"))
    assert {stat.pid for stat in ProcessTree(10, proc.folder).living()} == {10}


def test_shared_memory_is_split_between_those_who_share_it(proc: FakeProc) -> None:
    for pid, parent in [(10, 1), (11, 10)]:
        proc.add(stat_line(pid, parent))
        (proc.folder / str(pid) / "smaps_rollup").write_text("Rss: 900 kB\nPss: 300 kB\n")
    assert ProcessTree(10, proc.folder).pss_bytes() == 600 * 1024


def test_own_process_has_memory_and_time() -> None:
    import os

    tree = ProcessTree(os.getpid())
    assert tree.rss_bytes() > 0
    assert tree.pss_bytes() > 0
    assert tree.cpu_s() > 0
