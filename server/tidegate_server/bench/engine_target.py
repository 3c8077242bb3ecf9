"""Our own engine as a target: no HTTP and no text, only the step loop."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from tidegate_server.bench.engine_sample import EngineSample
from tidegate_server.bench.target import Clock, RequestFailed, Usage
from tidegate_server.engine.client import EngineClient
from tidegate_server.engine.messages import EngineReady, FinishReason, StepOutput
from tidegate_server.engine.preemption_kind import PreemptionKind
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.engine.snapshot import EngineSnapshot
from tidegate_server.errors import RequestError


class EngineTarget:
    """An engine that is ready; a `Target` and an `EngineWatch`."""

    def __init__(self, engine: EngineClient, ready: EngineReady, *, ignore_eos: bool) -> None:
        """
        Args:
            ignore_eos: go on to the wanted number of tokens, whatever the model draws.
        """
        self._engine = engine
        self._ready = ready
        self._ignore_eos = ignore_eos

    @property
    def vocab_size(self) -> int:
        return self._ready.vocab_size

    async def complete(
        self, index: int, prompt_token_ids: Sequence[int], num_output_tokens: int, on_tokens: Callable[[int], None]
    ) -> Usage:
        sampling = SamplingParams(max_tokens=num_output_tokens, temperature=0.0, ignore_eos=self._ignore_eos)
        num_tokens = 0
        finish: FinishReason | None = None
        try:
            async with self._engine.submit(f"bench-{index}", prompt_token_ids, sampling) as stream:
                async for output in stream:
                    if output.token_ids:
                        num_tokens += len(output.token_ids)
                        on_tokens(len(output.token_ids))
                    finish = output.finish_reason
        except RequestError as error:
            raise RequestFailed(error.message) from error
        if finish is FinishReason.ABORT:
            raise RequestFailed("the engine aborted it")
        return Usage(len(prompt_token_ids), num_tokens)

    @contextlib.asynccontextmanager
    async def watching(self, on_sample: Callable[[EngineSample], None], now_s: Clock) -> AsyncIterator[None]:
        """One sample after each step."""
        preemptions = Counter({kind.value: 0 for kind in PreemptionKind})

        def look(step: StepOutput | None = None) -> None:
            for each in step.preemptions if step is not None else ():
                preemptions[each.kind.value] += each.count
            on_sample(sample_of(self._engine.snapshot(), preemptions, now_s()))

        look()
        unsubscribe = self._engine.subscribe(look)
        try:
            yield
        finally:
            unsubscribe()
            look()


def sample_of(snapshot: EngineSnapshot, preemptions: Mapping[str, int], at_s: float) -> EngineSample:
    """An engine's snapshot, with the preemptions so far by kind, as one moment of a run."""
    total = snapshot.kv_blocks_total
    prefix_hits = snapshot.prefix_hit_tokens + snapshot.prefix_host_hit_tokens
    return EngineSample(
        at_s=at_s,
        num_running=snapshot.num_running,
        num_waiting=snapshot.num_waiting,
        kv_usage_ratio=snapshot.kv_blocks_live / total if total else 0.0,
        num_kv_blocks=total,
        preemptions=dict(preemptions),
        prefix_query_tokens=prefix_hits + snapshot.prefix_miss_tokens,
        prefix_hit_tokens=prefix_hits,
    )
