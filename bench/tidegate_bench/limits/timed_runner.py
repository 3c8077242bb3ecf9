"""The model's runner with a clock on every call into the C library; made in the engine process of `timed_server`."""

import atexit
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ParamSpec
from unittest.mock import patch

from tidegate_bench.limits.step_times import Step, write_steps
from tidegate_kernels.cpu.library import Library, load_library
from tidegate_server.engine.batch import Batch, SampledToken
from tidegate_server.model import loading
from tidegate_server.model.runner import ModelRunner, load_runner
from tidegate_server.model_source import ModelFiles
from tidegate_server.settings import EngineSettings

Parameters = ParamSpec("Parameters")


@dataclass(slots=True)
class StepClock:
    """Notes each step; the one that runs is closed by the next."""

    now_s: Callable[[], float] = time.perf_counter
    steps: list[Step] = field(default_factory=list)
    _running: tuple[float, int, int] | None = None
    _library_s: float = 0.0

    def begin(self, batch: Batch) -> None:
        now_s = self.now_s()
        self.close()
        num_new_tokens = sum(share.num_new_tokens for share in batch.scheduled)
        self._running = (now_s, len(batch.scheduled), num_new_tokens)

    def close(self) -> None:
        if self._running is not None:
            start_s, num_requests, num_new_tokens = self._running
            self.steps.append(Step(start_s, self._library_s, num_requests, num_new_tokens))
        self._running, self._library_s = None, 0.0

    def timed(self, function: Callable[Parameters, None]) -> Callable[Parameters, None]:
        """The function, whose time counts as the library's."""

        def call(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> None:
            start_s = self.now_s()
            function(*arguments, **keywords)
            self._library_s += self.now_s() - start_s

        return call


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRunner(ModelRunner):
    """Computes the same."""

    clock: StepClock

    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        self.clock.begin(batch)
        return ModelRunner.run(self, batch)


def load_timed_runner(settings: EngineSettings, files: ModelFiles, record: Path) -> ModelRunner:
    """As `load_runner`; the steps' times are in `record` once the process has ended."""
    clock = StepClock()
    with patch.object(loading, "load_library", lambda: _timed_library(load_library(), clock)):
        plain = load_runner(settings, files)

    def write() -> None:
        clock.close()
        write_steps(clock.steps, record)

    atexit.register(write)
    return TimedRunner(**{one.name: getattr(plain, one.name) for one in fields(plain)}, clock=clock)


def _timed_library(library: Library | None, clock: StepClock) -> Library | None:
    if library is None:
        return None
    names = [one.name for one in fields(library) if one.name.startswith("run_")]
    timed: dict[str, Any] = {name: clock.timed(getattr(library, name)) for name in names}
    return replace(library, **timed)
