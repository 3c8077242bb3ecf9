import pytest

from tests.bench.engine.timed_runner import TimedRunner
from tidegate_bench.engine.overload import NUM_FULL_SEQUENCES, conditions, serve_all
from tidegate_bench.engine.result import AMPLE, STATIC
from tidegate_server.bench.workloads import LengthRange, PlannedRequest, WorkloadKind, WorkloadOptions, build_workload
from tidegate_server.settings import EngineSettings, PreemptionMode, SchedulerKind

BLOCK_SIZE = 16


def requests(num_requests: int) -> tuple[PlannedRequest, ...]:
    return build_workload(
        WorkloadOptions(
            kind=WorkloadKind.OVERLOAD,
            prompt_tokens=LengthRange(16, 32),
            output_tokens=LengthRange(48, 64),
            num_requests=num_requests,
        )
    )


def test_every_way_to_preempt_stands_beside_a_run_with_ample_memory() -> None:
    settings = EngineSettings(seed=3)
    *short, ample, static = conditions(settings)
    assert [condition.settings.preemption_mode for condition in short] == [
        PreemptionMode.AUTO,
        PreemptionMode.RECOMPUTE,
        PreemptionMode.TAIL,
        PreemptionMode.SWAP,
    ]
    assert [condition.has_host_memory for condition in short] == [False, False, False, True]
    assert (ample.name, ample.is_ample, ample.settings.max_num_seqs) == (AMPLE, True, NUM_FULL_SEQUENCES)
    assert all(condition.settings.seed == settings.seed for condition in (*short, ample, static))


def test_static_batching_stands_beside_them_with_the_same_memory() -> None:
    *_, static = conditions(EngineSettings())
    assert (static.name, static.settings.scheduler, static.is_ample) == (STATIC, SchedulerKind.STATIC, False)
    runner = TimedRunner(num_kv_blocks=NUM_FULL_SEQUENCES * 96 // BLOCK_SIZE)
    served = serve_all(runner, static.settings, requests(12), 0, runner.clock)
    assert (served.num_completed, served.preemptions) == (12, ())


@pytest.mark.parametrize("mode", PreemptionMode)
def test_short_memory_completes_every_request_and_counts_what_that_took(mode: PreemptionMode) -> None:
    wanted = requests(24)
    runner = TimedRunner(
        num_kv_blocks=NUM_FULL_SEQUENCES * 96 // BLOCK_SIZE, num_host_blocks=256, swap_bytes_per_s=1e9, block_bytes=100
    )
    served = serve_all(runner, EngineSettings(preemption_mode=mode), wanted, 0, runner.clock)
    assert served.num_completed == len(wanted)
    assert served.num_output_tokens == sum(request.num_output_tokens for request in wanted)
    assert served.duration_s == runner.clock.now_s
    assert sum(served.preemptions) > 0
    if mode is PreemptionMode.SWAP:
        assert served.swapped_bytes > 0
    elif mode is not PreemptionMode.AUTO:
        assert served.recomputed_tokens > 0


def test_ample_memory_preempts_nobody() -> None:
    runner = TimedRunner(num_kv_blocks=1000)
    served = serve_all(runner, EngineSettings(max_num_seqs=NUM_FULL_SEQUENCES), requests(24), 0, runner.clock)
    assert (served.preemptions, served.recomputed_tokens, served.swapped_bytes) == ((), 0, 0)


def test_a_request_that_is_refused_is_not_completed() -> None:
    runner = TimedRunner(num_kv_blocks=1)  # less than a prompt
    assert serve_all(runner, EngineSettings(), requests(2), 0, runner.clock).num_completed == 0
