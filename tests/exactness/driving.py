"""Runs requests through the real engine by hand, step by step, on a real model."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidegate_server.engine.core import Engine
from tidegate_server.engine.messages import AddRequest, FinishReason
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.model.block_copier import BlockCopier
from tidegate_server.model.host_blocks import allocate_host_blocks
from tidegate_server.model.kv_cache import allocate_kv_cache, plan_kv_cache
from tidegate_server.model.runner import ModelRunner
from tidegate_server.settings import EngineSettings

SWAP_BYTES_PER_S = 1e10  # as told to the engine, whatever the machine does: decisions are the same everywhere


@dataclass
class Answer:
    """Everything one request was given."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0


def greedy(max_tokens: int) -> SamplingParams:
    """The most probable token every time, with its log-probability; an end token ends nothing."""
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, logprobs=0)


class Driver:
    """An engine of its own on a model that is loaded already."""

    def __init__(self, runner: ModelRunner, settings: EngineSettings, num_host_blocks: int = 0) -> None:
        self.engine = Engine(with_cache(runner, settings, num_host_blocks), settings)
        self.answers: dict[str, Answer] = {}

    def submit(self, request_id: str, prompt: Sequence[int], sampling: SamplingParams) -> None:
        self.answers[request_id] = Answer()
        self.engine.apply(
            AddRequest(
                request_id=request_id,
                prompt_token_ids=list(prompt),
                sampling=sampling,
                arrival_s=time.monotonic(),
            )
        )

    def step(self) -> None:
        done = self.engine.step()
        for output in done.outputs if done is not None else ():
            assert output.error is None, output.error
            answer = self.answers[output.request_id]
            answer.token_ids.extend(output.token_ids)
            answer.logprobs.extend(output.logprobs)
            answer.finish_reason = output.finish_reason or answer.finish_reason
            answer.num_cached_tokens = output.num_cached_tokens or answer.num_cached_tokens
            answer.num_preemptions = output.num_preemptions

    def run(self) -> None:
        """Step until every request has ended."""
        while self.engine.has_work:
            self.step()


def run_alone(runner: ModelRunner, prompts: Mapping[str, Sequence[int]], sampling: SamplingParams) -> dict[str, Answer]:
    """Each request after the one before it has ended, with nothing kept in between."""
    driver = Driver(runner, EngineSettings(prefix_caching=False))
    for request_id, prompt in prompts.items():
        driver.submit(request_id, prompt, sampling)
        driver.run()
    return driver.answers


def with_cache(runner: ModelRunner, settings: EngineSettings, num_host_blocks: int = 0) -> ModelRunner:
    """The same weights with a cache of their own, as small as the settings say, and so many blocks to swap to."""
    dtype = runner.kv_cache.blocks.dtype
    plan = plan_kv_cache(runner.config, settings, dtype, "cpu", available_bytes=1 << 30, available_host_bytes=1 << 30)
    kv_cache = allocate_kv_cache(runner.config, plan, settings.block_size, dtype, runner.torch_device)
    return replace(
        runner,
        kv_cache=kv_cache,
        block_copier=BlockCopier(kv_cache.blocks, allocate_host_blocks(num_host_blocks, kv_cache.blocks)),
        swap_bytes_per_s=SWAP_BYTES_PER_S if num_host_blocks else 0.0,
        max_model_len=min(plan.max_model_len, runner.max_model_len),
        num_kv_blocks=plan.num_blocks,
        block_size=settings.block_size,
    )
