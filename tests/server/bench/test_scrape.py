import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tidegate_contract.admin import ServerState
from tidegate_server.bench.engine_sample import EngineSample
from tidegate_server.bench.scrape import ANY_KIND, MetricsWatch, parse_metrics
from tidegate_server.engine.messages import PreemptionCount, StepOutput
from tidegate_server.engine.preemption_kind import PreemptionKind, PreemptionReason
from tidegate_server.engine.snapshot import EngineSnapshot
from tidegate_server.errors import StartError
from tidegate_server.metrics import BuildFacts, ServerMetrics

VLLM_WITH_TWO_ENGINES = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:num_preemptions_total{engine="1",model_name="m"} 3.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="100"} 1.0
"""


def our_page() -> str:
    seen = EngineSnapshot(
        num_running=3, num_waiting=2, kv_blocks_live=40, kv_blocks_total=160, block_size=16,
        prefix_miss_tokens=700, prefix_hit_tokens=200, prefix_host_hit_tokens=100,
    )  # fmt: skip
    facts = BuildFacts(version="1", block_size=16, num_kv_blocks=160)
    metrics = ServerMetrics("m", lambda: seen, lambda: ServerState.READY, lambda: facts)
    counts = (
        PreemptionCount(PreemptionKind.SWAP, PreemptionReason.BLOCKS, 2),
        PreemptionCount(PreemptionKind.SWAP, PreemptionReason.SEATS, 1),
        PreemptionCount(PreemptionKind.TAIL, PreemptionReason.BLOCKS, 2),
    )
    metrics.step_told(StepOutput(step=1, outputs=(), step_time_s=0.1, preemptions=counts))
    return metrics.exposition().decode()


def test_our_own_metrics_tell_everything() -> None:
    sample = parse_metrics(our_page(), 1.5)
    assert (sample.at_s, sample.num_running, sample.num_waiting) == (1.5, 3, 2)
    assert (sample.kv_usage_ratio, sample.num_kv_blocks, sample.kv_blocks_used) == (0.25, 160, 40)
    assert (sample.prefix_query_tokens, sample.prefix_hit_tokens) == (1000, 300)
    assert sample.preemptions == {"recompute": 0, "swap": 3, "tail": 2}


def test_vllms_engines_are_taken_together() -> None:
    sample = parse_metrics(VLLM_WITH_TWO_ENGINES, 0.0)
    assert (sample.num_running, sample.num_waiting) == (7, 1)
    assert (sample.kv_usage_ratio, sample.num_kv_blocks, sample.kv_blocks_used) == (0.375, 200, 75)
    assert sample.preemptions == {ANY_KIND: 5}
    assert (sample.prefix_query_tokens, sample.prefix_hit_tokens) == (None, None)


def test_a_page_without_these_metrics_tells_nothing() -> None:
    assert parse_metrics("process_open_fds 3\n", 2.0) == EngineSample(at_s=2.0)


@contextlib.asynccontextmanager
async def served(page: str) -> AsyncIterator[str]:
    """The page at a URL."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=page)

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def test_a_watch_looks_at_the_start_and_at_the_end() -> None:
    samples: list[EngineSample] = []

    async def run() -> None:
        async with served(our_page()) as url, MetricsWatch(f"{url}/metrics").watching(samples.append, lambda: 1.0):
            assert len(samples) == 1

    asyncio.run(run())
    assert len(samples) >= 2
    assert {sample.num_running for sample in samples} == {3}


def test_a_page_that_is_not_there_stops_the_start() -> None:
    async def run() -> None:
        async with served("") as url, MetricsWatch(f"{url}/nothing").watching(lambda sample: None, lambda: 0.0):
            pass

    with pytest.raises(StartError, match="/nothing cannot be read: HTTP 404"):
        asyncio.run(run())
