"""Whole runs on the step loop, with a model that counts."""

import asyncio
import time

from tests.server.engine.counting_runner import CountingRunner
from tidegate_server.bench.driver import Ending, Measurement, measure
from tidegate_server.bench.engine_target import EngineTarget
from tidegate_server.bench.record import Outcome
from tidegate_server.bench.summary import Summary, summarise
from tidegate_server.bench.workloads import LengthRange, WorkloadKind, WorkloadOptions, build_workload
from tidegate_server.engine.local import LocalEngine
from tidegate_server.settings import EngineSettings

BLOCK_SIZE = 4


def measured(options: WorkloadOptions, num_kv_blocks: int = 10_000, **runner: object) -> tuple[Measurement, Summary]:
    """Run a workload on an engine in a thread."""
    requests = build_workload(options)

    async def main() -> Measurement:
        model = CountingRunner(num_kv_blocks=num_kv_blocks, block_size=BLOCK_SIZE, vocab_size=100_000, **runner)  # type: ignore[arg-type]  # test keywords are the runner's own
        engine = LocalEngine(model, EngineSettings())
        target = EngineTarget(engine, await engine.ready(), ignore_eos=True)
        try:
            return await asyncio.wait_for(
                measure(
                    requests,
                    target,
                    seed=options.seed,
                    clock=time.perf_counter,
                    interrupted=asyncio.Event(),
                    watch=target,
                ),
                60,
            )
        finally:
            await engine.shutdown()

    result = asyncio.run(main())
    return result, summarise(result.records, len(requests), result.duration_s, result.samples)


def options(kind: WorkloadKind = WorkloadKind.RANGE, **given: object) -> WorkloadOptions:
    defaults: dict[str, object] = {
        "num_requests": 24,
        "prompt_tokens": LengthRange(8, 40),
        "output_tokens": LengthRange(4, 12),
    }
    return WorkloadOptions(kind=kind, **(defaults | given))  # type: ignore[arg-type]  # test keywords are the options' own


def test_a_run_asks_for_exactly_the_planned_tokens() -> None:
    requests = build_workload(options())
    result, summary = measured(options())
    assert (result.ending, summary.num_finished) == (Ending.COMPLETE, 24)
    assert summary.num_output_tokens == sum(request.num_output_tokens for request in requests)
    assert summary.num_prompt_tokens == sum(request.num_prompt_tokens for request in requests)
    for record in result.records:
        assert len(record.token_times_s) == record.num_output_tokens  # one token a step
        assert record.arrival_s <= record.sent_s <= record.token_times_s[0]


def test_samples_follow_the_engine_from_empty_to_empty() -> None:
    result, summary = measured(options())
    assert (result.samples[0].kv_blocks_used, result.samples[-1].kv_blocks_used) == (0, 0)
    assert summary.engine is not None
    assert summary.engine.num_kv_blocks == 10_000
    assert summary.engine.peak_kv_blocks is not None
    assert summary.engine.peak_kv_blocks > 0
    assert summary.engine.preemptions == {"recompute": 0, "swap": 0, "tail": 0}


def test_shared_prefixes_are_hits() -> None:
    shared = options(
        WorkloadKind.SHARED_PREFIX, num_prefixes=1, prefix_tokens=64, prompt_tokens=LengthRange(4, 4), rate_per_s=1e6
    )
    _, summary = measured(shared)
    assert summary.engine is not None
    assert summary.engine.prefix_query_tokens == 24 * 68
    assert summary.engine.prefix_hit_tokens is not None
    assert summary.engine.prefix_hit_tokens >= 64  # how many come before the first is computed, nobody can say


def test_an_overload_preempts_and_still_finishes_everything() -> None:
    overload = options(WorkloadKind.OVERLOAD, output_tokens=LengthRange(60, 100))
    _, summary = measured(overload, num_kv_blocks=3 * (40 + 100) // BLOCK_SIZE)
    assert (summary.num_finished, summary.num_failed) == (24, 0)
    assert summary.engine is not None
    assert summary.engine.preemptions is not None
    assert sum(summary.engine.preemptions.values()) > 0
    assert summary.engine.peak_waiting is not None
    assert summary.engine.peak_waiting > 0


def test_a_request_that_can_never_run_fails_with_the_engines_words() -> None:
    result, summary = measured(options(prompt_tokens=LengthRange(300, 300)), max_model_len=256)
    assert summary.num_failed == 24
    assert all(record.outcome is Outcome.FAILED for record in result.records)
    (error,) = summary.errors
    assert "300 tokens" in error
    assert "256" in error
