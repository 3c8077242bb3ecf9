"""Does a row get the same bits in any batch? Tried at start on every shape of weight, every op, and whole steps."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from tidegate_server.engine.batch import LoadedRunner, RequestId, ScheduledRequest
from tidegate_server.engine.exactness import Difference
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.model.decoder import ForwardPass
from tidegate_server.model.kv_cache import KvCache
from tidegate_server.model.row_ops import FEW_ROWS, RowOp, find_difference, random_rows
from tidegate_server.model.sampler import Draw, SamplerOps, sample
from tidegate_server.model.step_probe import find_step_difference, num_blocks_of_steps

SHARPNESS = 6.0  # times random numbers: logits as of a model that prefers some tokens

# By turns: greedy, all tokens, the most probable ones by their weight and by their number.
KINDS_OF_SAMPLING = (
    SamplingParams(max_tokens=1, temperature=0.0, logprobs=3),
    SamplingParams(max_tokens=1, temperature=0.8, logprobs=3),
    SamplingParams(max_tokens=1, temperature=0.8, top_p=0.9, logprobs=3),
    SamplingParams(max_tokens=1, temperature=0.8, top_k=50, logprobs=3),
)


class ProbedRunner(LoadedRunner, Protocol):
    """What the probe sees of a runner."""

    @property
    def decoder(self) -> ForwardPass: ...

    @property
    def sampler_ops(self) -> SamplerOps: ...

    @property
    def kv_cache(self) -> KvCache: ...

    @property
    def torch_device(self) -> torch.device: ...


def scratch_cache(like: KvCache) -> KvCache:
    """A cache for the probe alone, so that the runner's is neither read nor written; a few blocks of the same shape."""
    block_size = like.blocks.shape[4]
    blocks = like.blocks.new_empty(num_blocks_of_steps(block_size) + 1, *like.blocks.shape[1:])
    return KvCache(blocks=blocks, layers=blocks.unbind(1))


@torch.inference_mode()
def find_differences(runner: ProbedRunner) -> Iterator[Difference]:
    """Everything that gives rows other bits in another batch.

    Args:
        runner: with a `scratch_cache`, which is written.
    """
    for op in _ops(runner):
        if difference := find_difference(op):
            yield difference
    if difference := find_step_difference(runner):
        yield difference


def _ops(runner: ProbedRunner) -> Iterator[RowOp]:
    yield from runner.decoder.row_ops(runner.kv_cache)
    yield _sampling(runner)


def _sampling(runner: ProbedRunner) -> RowOp:
    logits = (random_rows(FEW_ROWS, runner.vocab_size) * SHARPNESS).to(runner.torch_device)
    draws = [_draw(row) for row in range(FEW_ROWS)]
    eos, ops = runner.eos_token_ids, runner.sampler_ops
    return RowOp(f"sampling {runner.vocab_size}", FEW_ROWS, lambda rows: _sampled(logits, draws, rows, eos, ops))


def _draw(row: int) -> Draw:
    sampling = KINDS_OF_SAMPLING[row % len(KINDS_OF_SAMPLING)]
    request = ScheduledRequest(
        request_id=RequestId(f"probe-{row}"), start=row, token_ids=(0,), block_table=(), sampling=sampling, seed=row
    )
    return Draw(request, sampling)


def _sampled(logits: Tensor, draws: list[Draw], rows: list[int], eos: tuple[int, ...], ops: SamplerOps) -> Tensor:
    """Tokens and log-probabilities as rows of numbers."""
    tokens = sample(logits[rows], [draws[row] for row in rows], eos, ops)
    top = [[part for pair in token.top_logprobs for part in pair] for token in tokens]
    return torch.tensor(
        [[token.token_id, token.logprob, *more] for token, more in zip(tokens, top, strict=True)], dtype=torch.float64
    )
