"""The timeline of a run as a picture: KV use, running and waiting requests, preemptions."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from tidegate_server.bench.engine_sample import EngineSample, preemptions_since
from tidegate_server.errors import InvalidSetting

FLAG = "--plot"
FORMATS = (".pdf", ".png", ".svg")
_SIZE_INCHES = (10, 7)


def check_plot(path: Path) -> None:
    """Before a long run: whether its picture can be drawn.

    Raises:
        InvalidSetting: no picture is called like this, or matplotlib is missing.
    """
    if path.suffix.lower() not in FORMATS:
        raise InvalidSetting(FLAG, f"{path} is no picture; name a file that ends in {', '.join(FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidSetting(FLAG, "matplotlib draws it and is not installed; run: pip install 'tidegate[bench]'")


def plot_timeline(samples: Sequence[EngineSample], title: str, path: Path) -> None:
    """Draw the samples into a file, of the kind that its name ends in.

    Args:
        samples: in order of time, at least one.
    """
    # An optional dependency, and slow to import.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    figure.suptitle(title, fontsize="medium", wrap=True)
    blocks, requests, preemptions = figure.subplots(3, 1, sharex=True)
    times_s = [sample.at_s for sample in samples]

    blocks.plot(times_s, [_percent(sample.kv_usage_ratio) for sample in samples], drawstyle="steps-post")
    blocks.set(ylabel="KV blocks in use, %", ylim=(0, 105))

    for name, counts in (
        ("running", [sample.num_running for sample in samples]),
        ("waiting", [sample.num_waiting for sample in samples]),
    ):
        requests.plot(times_s, _numbers(counts), drawstyle="steps-post", label=name)
    requests.set(ylabel="requests", ylim=(0, None))
    requests.yaxis.set_major_locator(MaxNLocator(integer=True))
    requests.legend(loc="upper right")

    since_start = [preemptions_since(samples[0], sample) or {} for sample in samples]
    kinds = sorted({kind for counts in since_start for kind, count in counts.items() if count})
    for kind in kinds:
        preemptions.plot(times_s, [counts.get(kind, 0) for counts in since_start], drawstyle="steps-post", label=kind)
    preemptions.set(ylabel="preemptions", xlabel="seconds after the start", ylim=(0, None))
    preemptions.yaxis.set_major_locator(MaxNLocator(integer=True))
    if kinds:
        preemptions.legend(loc="upper left")

    figure.savefig(path, dpi=120)


_UNTOLD = float("nan")  # a gap in the line


def _percent(ratio: float | None) -> float:
    return _UNTOLD if ratio is None else 100 * ratio


def _numbers(counts: Sequence[int | None]) -> list[float]:
    return [_UNTOLD if count is None else count for count in counts]
