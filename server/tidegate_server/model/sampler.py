"""Logits to tokens, many rows at once; `sampler_reference.py` says what a draw is, row by row.

What is computed over the vocabulary is behind `SamplerOps`: in torch on any device (`sampler_torch.py`), or by the C
library on CPU (`sampler_cpu.py`). Each row's result is a function of that row alone, and a row that asks for nothing
costs one maximum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tidegate_server.engine.batch import SampledToken, ScheduledRequest
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.errors import BadLogits
from tidegate_server.model.draw import uniform
from tidegate_server.model.sampler_reference import GREEDY_BELOW, end_token_ids, is_usable


@dataclass(frozen=True, slots=True)
class Draw:
    """What a row of logits is to become."""

    request: ScheduledRequest
    sampling: SamplingParams

    @property
    def is_greedy(self) -> bool:
        return self.sampling.temperature < GREEDY_BELOW

    @property
    def is_cut(self) -> bool:
        return self.sampling.top_k is not None or self.sampling.top_p < 1.0

    @property
    def random(self) -> float:
        return uniform(self.request.seed, self.request.stop, self.sampling.choice)


@dataclass(frozen=True, slots=True)
class Row:
    """Logits that may be drawn from."""

    logits: Tensor  # fp32 [vocab_size]
    maximum: float  # of them, finite


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the model's probabilities, before the sampling parameters."""

    drawn: float
    top: tuple[tuple[int, float], ...]  # (token id, log-probability), the largest logit first, equal ones by rising id


class SamplerOps(Protocol):
    """What is computed over whole rows of the vocabulary."""

    def argmax(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Each row's maximum (fp32; NaN where the row holds a NaN) and the first index (int64) that has it.

        Args:
            rows: fp32 `[num_rows, vocab_size]`.
        """
        ...

    def draw(self, rows: Sequence[Row], draws: Sequence[Draw]) -> list[int]:
        """One token of each row, none of them greedy."""
        ...

    def logprobs(self, rows: Sequence[Row], token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
        """Of each row's token, and of its `num_top` best, or of all where it has fewer."""
        ...


def sample(
    logits: Tensor, draws: Sequence[Draw], eos_token_ids: tuple[int, ...], ops: SamplerOps
) -> tuple[SampledToken, ...]:
    """Draw one token for each row.

    Args:
        logits: `[len(draws), vocab_size]`, any float dtype; not changed.

    Raises:
        BadLogits: a row holds NaN or +inf, or nothing that may be drawn, or overflows under its temperature.
    """
    rows = logits.float()
    maximum, best = ops.argmax(rows)
    maxima: list[float] = maximum.tolist()
    token_ids: list[int] = best.tolist()
    _refuse_bad_rows(maxima, draws)

    early = [i for i, draw in enumerate(draws) if draw.request.num_output_tokens < draw.sampling.min_tokens]
    endless: dict[int, Row] = {}  # what these rows draw from instead
    if early:
        allowed = _without_ends(rows[early], [draws[i] for i in early], eos_token_ids)
        maximum, best = ops.argmax(allowed)
        _refuse_bad_rows(maximum.tolist(), [draws[i] for i in early])
        for i, row, largest, token_id in zip(early, allowed, maximum.tolist(), best.tolist(), strict=True):
            endless[i] = Row(row, largest)
            token_ids[i] = token_id

    sampled = [i for i, draw in enumerate(draws) if not draw.is_greedy]
    if sampled:
        drawn = ops.draw([endless.get(i) or Row(rows[i], maxima[i]) for i in sampled], [draws[i] for i in sampled])
        for i, token_id in zip(sampled, drawn, strict=True):
            token_ids[i] = token_id

    logprobs = _logprobs(rows, maxima, draws, token_ids, ops)
    return tuple(_sampled_token(draw, token_ids[i], logprobs.get(i)) for i, draw in enumerate(draws))


def _refuse_bad_rows(maxima: Sequence[float], draws: Sequence[Draw]) -> None:
    """A maximum is NaN where any value is, infinite where one is too large or all are forbidden."""
    for draw, maximum in zip(draws, maxima, strict=True):
        if not is_usable(maximum, draw.sampling.temperature):
            raise BadLogits(draw.request.request_id, draw.request.stop)


def _without_ends(copies: Tensor, draws: Sequence[Draw], eos_token_ids: tuple[int, ...]) -> Tensor:
    """The rows, changed in place so that none of them can end."""
    for row, draw in zip(copies, draws, strict=True):
        row[end_token_ids(draw.sampling, eos_token_ids, len(row))] = -torch.inf
    return copies


def _logprobs(
    rows: Tensor, maxima: Sequence[float], draws: Sequence[Draw], token_ids: Sequence[int], ops: SamplerOps
) -> Mapping[int, TokenLogprobs]:
    """For the rows that ask."""
    num_top = {i: draw.sampling.logprobs for i, draw in enumerate(draws) if draw.sampling.logprobs is not None}
    if not num_top:
        return {}
    asking = [Row(rows[i], maxima[i]) for i in num_top]
    found = ops.logprobs(asking, [token_ids[i] for i in num_top], list(num_top.values()))
    return dict(zip(num_top, found, strict=True))


def _sampled_token(draw: Draw, token_id: int, logprobs: TokenLogprobs | None) -> SampledToken:
    if logprobs is None:
        return SampledToken(draw.request.request_id, token_id)
    return SampledToken(draw.request.request_id, token_id, logprobs.drawn, logprobs.top)
