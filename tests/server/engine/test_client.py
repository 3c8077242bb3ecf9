"""The async client on an engine in a thread: the same loop and rules as in a process."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.server.engine.counting_runner import BAD_TOKEN, DEADLY_TOKEN, CountingRunner
from tidegate_contract.admin import ServerState
from tidegate_server.engine.event_log import EventKind
from tidegate_server.engine.local import LocalEngine
from tidegate_server.engine.messages import FinishReason, RequestOutput, StepOutput
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.errors import EngineError, InvalidRequest, Overloaded
from tidegate_server.settings import EngineSettings

FOREVER = SamplingParams(max_tokens=300_000)
ENDLESS = [10_000]  # a prompt after which no count ever comes to a token that fails


def with_engine(body: Callable[[LocalEngine], Awaitable[None]], **settings: int) -> LocalEngine:
    """Run `body` on a ready engine with a large context, and shut the engine down."""

    async def main() -> LocalEngine:
        runner = CountingRunner(num_kv_blocks=100_000, max_model_len=400_000, vocab_size=1_000_000)
        engine = LocalEngine(runner, EngineSettings(**settings))  # type: ignore[arg-type]  # numbers only, in these tests
        await engine.ready()
        try:
            await asyncio.wait_for(body(engine), 30)
        finally:
            await engine.shutdown()
        return engine

    return asyncio.run(main())


async def collect(engine: LocalEngine, request_id: str, prompt: list[int], max_tokens: int = 5) -> list[int]:
    stream = engine.submit(request_id, prompt, SamplingParams(max_tokens=max_tokens))
    return [token async for output in stream for token in output.token_ids]


async def until_ended(engine: LocalEngine, kind: EventKind, request_id: str) -> None:
    """Let the engine go on until it has recorded this."""
    while not engine.engine.events.of(kind, request_id):
        await asyncio.sleep(0)


def test_many_requests_stream_at_once() -> None:
    async def body(engine: LocalEngine) -> None:
        results = await asyncio.gather(*(collect(engine, str(n), [n * 100, n * 100 + 1]) for n in range(20)))
        assert results == [list(range(n * 100 + 2, n * 100 + 7)) for n in range(20)]
        assert engine.num_open == 0

    with_engine(body)


def test_closing_a_stream_aborts_its_request() -> None:
    async def body(engine: LocalEngine) -> None:
        async with engine.submit("a", ENDLESS, FOREVER) as stream:
            await anext(stream)
        await until_ended(engine, EventKind.ABORTED, "a")

    engine = with_engine(body)
    assert engine.engine.scheduler.pool.num_live == 0


def test_cancelling_a_reader_aborts_its_request_and_no_other() -> None:
    async def body(engine: LocalEngine) -> None:
        reading = asyncio.ensure_future(collect(engine, "a", ENDLESS, max_tokens=300_000))
        other = asyncio.ensure_future(collect(engine, "b", [500], max_tokens=300))
        await until_ended(engine, EventKind.FIRST_TOKEN, "a")
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await other == list(range(501, 801))
        await until_ended(engine, EventKind.ABORTED, "a")

    with_engine(body)


def test_abort_ends_the_stream_with_a_reason() -> None:
    async def body(engine: LocalEngine) -> None:
        stream = engine.submit("a", ENDLESS, FOREVER)
        outputs: list[RequestOutput] = [await anext(stream)]
        engine.abort("a")
        engine.abort("a")
        engine.abort("nobody")
        outputs += [output async for output in stream]
        assert outputs[-1].finish_reason is FinishReason.ABORT

    with_engine(body)


def test_what_can_never_run_is_refused_before_it_is_sent() -> None:
    async def body(engine: LocalEngine) -> None:
        with pytest.raises(InvalidRequest, match="context holds 400000 tokens"):
            engine.submit("a", [1] * 400_000, FOREVER)
        assert engine.num_open == 0

    with_engine(body)


def test_an_id_stays_taken_until_the_engines_last_word() -> None:
    async def body(engine: LocalEngine) -> None:
        stream = engine.submit("a", ENDLESS, FOREVER)
        with pytest.raises(InvalidRequest, match="is running already"):
            engine.submit("a", [2], FOREVER)
        await stream.aclose()
        with pytest.raises(InvalidRequest, match="is running already"):
            engine.submit("a", [2], FOREVER)
        while engine.num_open:
            await asyncio.sleep(0)
        assert await collect(engine, "a", [2]) == [3, 4, 5, 6, 7]

    with_engine(body)


def test_one_bad_request_raises_for_its_reader_only() -> None:
    async def body(engine: LocalEngine) -> None:
        good = asyncio.ensure_future(collect(engine, "good", [10_000], max_tokens=50))
        with pytest.raises(EngineError, match=f"token {BAD_TOKEN} is bad"):
            await collect(engine, "bad", [BAD_TOKEN])
        assert len(await good) == 50

    with_engine(body)


def test_subscribers_see_every_step_and_a_broken_one_harms_nobody() -> None:
    seen: list[StepOutput] = []

    def broken(step: StepOutput) -> None:
        raise ValueError("a mistake in a metric")

    async def body(engine: LocalEngine) -> None:
        engine.subscribe(broken)
        unsubscribe = engine.subscribe(seen.append)
        assert await collect(engine, "a", [1]) == [2, 3, 4, 5, 6]
        unsubscribe()
        await collect(engine, "b", [1])

    with_engine(body)
    assert [output.request_id for step in seen for output in step.outputs] == ["a"] * 5
    assert [step.num_new_tokens for step in seen] == [1] * 5


def test_a_broken_engine_fails_every_stream_and_takes_nothing_more() -> None:
    async def body(engine: LocalEngine) -> None:
        stream = engine.submit("a", ENDLESS, FOREVER)
        await anext(stream)
        assert not engine.failed.is_set()
        deadly = engine.submit("deadly", [DEADLY_TOKEN], FOREVER)
        for each in (stream, deadly):
            with pytest.raises(
                Overloaded, match="engine of this server stopped: RunnerBroken: the device fell off the bus"
            ):
                async for _ in each:
                    pass
        await engine.failed.wait()
        assert engine.failure is not None
        assert engine.failure.code == "EngineCrashed"
        assert engine.snapshot().state is ServerState.FAILED
        with pytest.raises(Overloaded) as refused:
            engine.submit("b", [1], FOREVER)
        assert refused.value.code == "engine_failed"

    with_engine(body)


def test_shutdown_ends_open_streams_with_abort_and_is_no_failure() -> None:
    async def main() -> None:
        engine = LocalEngine(CountingRunner(num_kv_blocks=3000, max_model_len=10_000), EngineSettings())
        with pytest.raises(Overloaded, match="still loading") as refused:
            engine.submit("early", [1], FOREVER)
        assert refused.value.code == "starting"
        await engine.ready()
        stream = engine.submit("a", [1], SamplingParams(max_tokens=500))
        await anext(stream)
        closing = asyncio.ensure_future(engine.shutdown())
        outputs = [output async for output in stream]
        await closing
        await engine.shutdown()
        assert outputs[-1].finish_reason in (FinishReason.ABORT, FinishReason.LENGTH)
        assert not engine.failed.is_set()
        with pytest.raises(Overloaded, match="has stopped") as refused:
            engine.submit("late", [1], FOREVER)
        assert refused.value.code == "draining"

    asyncio.run(main())


def test_the_snapshot_follows_the_engine() -> None:
    async def body(engine: LocalEngine) -> None:
        await collect(engine, "a", [1])
        snapshot = engine.snapshot()
        assert snapshot.state is ServerState.READY
        assert (snapshot.num_running, snapshot.num_requests, snapshot.kv_blocks_total) == (0, 1, 100_000)

    with_engine(body)
