"""The runner with a clock on a small model: the same tokens, and times of every step."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.model.small_model import write_small_model
from tidegate_bench.limits.step_times import read_steps
from tidegate_bench.limits.timed_runner import StepClock, load_timed_runner
from tidegate_kernels.cpu.library import load_library, missing_because
from tidegate_server.engine.batch import Batch, RequestId, ScheduledRequest
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.model.runner import load_runner
from tidegate_server.model_source import resolve_model
from tidegate_server.settings import EngineSettings

SETTINGS = EngineSettings(device="cpu", dtype="float32", num_kv_blocks=8)


def batch(step: int, start: int, *token_ids: int) -> Batch:
    share = ScheduledRequest(
        request_id=RequestId("a"),
        start=start,
        token_ids=token_ids,
        block_table=[1],
        sampling=SamplingParams(max_tokens=8, temperature=0.0),
        seed=1,
    )
    return Batch(step=step, scheduled=(share,))


@pytest.mark.skipif(load_library() is None, reason=missing_because())
def test_steps_are_timed_and_their_tokens_are_those_of_the_plain_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = resolve_model(str(write_small_model(tmp_path)))
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    batches = [batch(1, 0, 5, 6, 7), batch(2, 3, 8), batch(3, 4, 9)]
    plain = load_runner(SETTINGS, files)
    expected = [plain.run(one) for one in batches]

    timed = load_timed_runner(SETTINGS, files, tmp_path / "steps.json")
    assert [timed.run(one) for one in batches] == expected

    [write] = at_exit
    write()
    steps = read_steps(tmp_path / "steps.json")
    assert [(step.num_requests, step.num_new_tokens) for step in steps] == [(1, 3), (1, 1), (1, 1)]
    # The library computed in each, and for no longer than the step lasted.
    assert all(step.library_s > 0 for step in steps)
    assert all(one.library_s < later.start_s - one.start_s for one, later in itertools.pairwise(steps))


def test_time_in_the_library_counts_for_the_step_that_runs() -> None:
    now_s = 0.0

    def compute() -> None:
        nonlocal now_s
        now_s += 3.0

    clock = StepClock(lambda: now_s)
    timed = clock.timed(compute)
    timed()  # while loading: no step's
    clock.begin(batch(1, 0, 5))
    timed()
    timed()
    now_s += 1.0
    clock.begin(batch(2, 1, 6))
    timed()
    clock.close()
    assert [(step.start_s, step.library_s) for step in clock.steps] == [(3.0, 6.0), (10.0, 3.0)]
