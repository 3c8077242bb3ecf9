import io

from tests.server.bench.records import record
from tidegate_server.bench.progress import ProgressBar, ProgressLines, show_progress
from tidegate_server.bench.record import Outcome


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_anything_else_lines() -> None:
    bar = show_progress(3, Terminal())
    assert isinstance(bar, ProgressBar)
    bar.close()
    assert isinstance(show_progress(3, io.StringIO()), ProgressLines)


def test_a_long_run_is_ten_lines() -> None:
    stream = io.StringIO()
    lines = ProgressLines(1000, stream)
    for index in range(1000):
        lines.request_ended(record(index, end_s=index / 10))
    told = stream.getvalue().splitlines()
    assert len(told) == 10
    assert told[0] == "bench: 100 of 1000 requests after 9.9 s"
    assert told[-1] == "bench: 1000 of 1000 requests after 99.9 s"


def test_failures_are_told_and_what_the_end_cut_is_not() -> None:
    stream = io.StringIO()
    lines = ProgressLines(2, stream)
    lines.request_ended(record(error="HTTP 500"))
    lines.request_ended(record(outcome=Outcome.UNFINISHED))
    assert stream.getvalue() == "bench: 1 of 2 requests after 3.0 s, 1 failed\n"


def test_a_bar_counts_ended_and_failed_requests() -> None:
    stream = Terminal()
    bar = ProgressBar(2, stream)
    bar.request_ended(record(error="HTTP 500"))
    bar.request_ended(record())
    bar.close()
    last = stream.getvalue().split("\r")[-1]
    assert "2/2" in last
    assert "1 failed" in last
