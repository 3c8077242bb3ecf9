"""A process and everything it started, read from /proc: memory, CPU time, and who to end."""

import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """What /proc/<pid>/stat says of one process."""

    pid: int
    parent_pid: int
    state: str  # one letter; Z: dead, its parent has not looked yet
    cpu_ticks: int  # its own
    dead_children_ticks: int  # of children that ended and were waited for
    start_ticks: int  # with the pid a name that is never given twice
    rss_pages: int


def parse_stat(text: str) -> ProcessStat:
    """Parse one stat line; the name in it may hold blanks and brackets."""
    head, _, tail = text.rpartition(")")
    words = tail.split()
    return ProcessStat(
        pid=int(head.split(" ", 1)[0]),
        state=words[0],
        parent_pid=int(words[1]),
        cpu_ticks=int(words[11]) + int(words[12]),
        dead_children_ticks=int(words[13]) + int(words[14]),
        start_ticks=int(words[19]),
        rss_pages=int(words[21]),
    )


def descendants(stats: list[ProcessStat], root_pid: int) -> list[ProcessStat]:
    """The root, if it is there, and all below it, parents before children."""
    children: dict[int, list[ProcessStat]] = defaultdict(list)
    for stat in stats:
        children[stat.parent_pid].append(stat)
    found = [stat for stat in stats if stat.pid == root_pid]
    for stat in found:  # grows while it is walked
        found.extend(children[stat.pid])
    return found


@dataclass(slots=True)
class ProcessTree:
    """The living tree under one root.

    A process whose parent ended moves away from its tree, so every process once seen stays known by pid and start.
    """

    root_pid: int
    proc: Path = Path("/proc")
    _known: dict[int, int] = field(default_factory=dict)  # pid to start ticks
    _peak_rss_bytes: int = 0

    def living(self) -> list[ProcessStat]:
        stats = self._read_all()
        by_pid = {stat.pid: stat for stat in stats}
        for stat in descendants(stats, self.root_pid):
            self._known.setdefault(stat.pid, stat.start_ticks)
        # The orphans' own children are found through the orphans.
        orphans = [pid for pid, start in self._known.items() if pid in by_pid and by_pid[pid].start_ticks == start]
        found = {stat.pid: stat for pid in orphans for stat in descendants(stats, pid)}
        self._known = {pid: stat.start_ticks for pid, stat in found.items()}
        return [stat for stat in found.values() if stat.state != "Z"]

    def cpu_s(self) -> float:
        """User and system time, with that of children already gone."""
        ticks = sum(stat.cpu_ticks + stat.dead_children_ticks for stat in self.living())
        return ticks / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Resident memory, pages shared between two of the processes counted twice; also moves the peak."""
        rss = sum(stat.rss_pages for stat in self.living()) * os.sysconf("SC_PAGE_SIZE")
        self._peak_rss_bytes = max(self._peak_rss_bytes, rss)
        return rss

    def pss_bytes(self) -> int:
        """Resident memory, shared pages split between those who share them: what the machine would get back."""
        return sum(self._pss_bytes(stat.pid) for stat in self.living())

    @property
    def peak_rss_bytes(self) -> int:
        """Largest `rss_bytes` so far."""
        return self._peak_rss_bytes

    def _read_all(self) -> list[ProcessStat]:
        stats = []
        for folder in self.proc.iterdir():
            if folder.name.isdigit():
                try:
                    stats.append(parse_stat((folder / "stat").read_text()))
                except (FileNotFoundError, ProcessLookupError):
                    continue  # ended between the listing and the reading
        return stats

    def _pss_bytes(self, pid: int) -> int:
        try:
            for line in (self.proc / str(pid) / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return 0
        return 0
