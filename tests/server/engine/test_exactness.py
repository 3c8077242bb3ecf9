"""What `--exact` makes of what the probe finds."""

from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from tidegate_server.engine.exactness import Difference, Exactness, settle_exactness
from tidegate_server.errors import InvalidSetting
from tidegate_server.settings import ExactMode

DOWN = Difference("down 1536x576", "a row alone against the same among 64")
HEAD = Difference("head 576x49152", "2 rows together against the same among 36")


@pytest.fixture(autouse=True)
def _whole_log() -> None:
    structlog.reset_defaults()  # the lines at info are the point here


def never() -> Iterator[Difference]:
    raise AssertionError("the probe ran")


def times(*seconds: float) -> Iterator[float]:
    yield from seconds


@pytest.mark.parametrize("mode", [ExactMode.AUTO, ExactMode.REQUIRE])
def test_exact_rows_are_told_in_one_line(mode: ExactMode) -> None:
    clock = times(5.0, 5.25)
    with capture_logs() as lines:
        assert settle_exactness(mode, lambda: (), "cpu-avx2", lambda: next(clock)) == Exactness()
    assert lines == [
        {
            "event": "exactness_probed",
            "log_level": "info",
            "exact": True,
            "kernels": "cpu-avx2",
            "probe_time_s": 0.25,
        }
    ]


def test_auto_goes_on_with_a_warning_that_names_what_differs() -> None:
    with capture_logs() as lines:
        found = settle_exactness(ExactMode.AUTO, lambda: (DOWN, HEAD), "torch")
    assert found == Exactness((DOWN, HEAD))
    assert found is not None
    assert (found.is_exact, found.inexact_ops) == (False, ("down 1536x576", "head 576x49152"))
    (line,) = lines
    assert (line["log_level"], line["exact"], line["kernels"]) == ("warning", False, "torch")
    assert line["differs"] == [
        "down 1536x576 (a row alone against the same among 64)",
        "head 576x49152 (2 rows together against the same among 36)",
    ]


@pytest.mark.parametrize(
    ("kernels", "advice"),
    [("cpu-avx2", "--cpu-isa or --dtype"), ("torch", "--cpu-isa auto"), ("triton", "--device cpu")],
)
def test_require_stops_the_start_with_what_differs_and_what_to_change(kernels: str, advice: str) -> None:
    with capture_logs() as lines, pytest.raises(InvalidSetting) as refused:
        settle_exactness(ExactMode.REQUIRE, lambda: (DOWN, HEAD), kernels)
    message = str(refused.value)
    assert message.startswith("--exact: require ")
    assert "\n" not in message
    for part in (str(DOWN), HEAD.op, kernels, advice, "--exact auto"):
        assert part in message
    assert lines == []  # the engine process tells why it stops


def test_off_does_not_look() -> None:
    with capture_logs() as lines:
        assert settle_exactness(ExactMode.OFF, never, "torch") is None
    assert [line["event"] for line in lines] == ["exactness_not_probed"]
