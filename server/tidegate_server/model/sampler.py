"""Logits to tokens, many rows at once; `sampler_reference.py` says what a draw is, row by row.

Every row's result is a function of that row alone: what is summed across a row are whole numbers, whose sum has no
order, and everything else is computed element by element. A row that asks for nothing costs one maximum.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tidegate_server.engine.batch import SampledToken, ScheduledRequest
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.errors import BadLogits
from tidegate_server.model.draw import uniform
from tidegate_server.model.sampler_reference import GREEDY_BELOW, WEIGHT_ONE, end_token_ids

NUM_CANDIDATES = 1024
"""How many of the best tokens `top_p` looks at before it ranks the whole vocabulary: ranking 49,152 takes a CPU core
some 4 ms a row, finding the best 1,024 about a tenth. Any number gives the same tokens."""


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


Argmax = Callable[[Tensor], tuple[Tensor, Tensor]]
"""fp32 rows to each one's maximum, NaN where the row holds a NaN, and to the first index that has it."""


def torch_argmax(rows: Tensor) -> tuple[Tensor, Tensor]:
    best = rows.max(dim=-1)  # on ties it gives the first, which is the lowest id
    return best.values, best.indices


def sample(
    logits: Tensor, draws: Sequence[Draw], eos_token_ids: tuple[int, ...], argmax: Argmax = torch_argmax
) -> tuple[SampledToken, ...]:
    """Draw one token for each row.

    Args:
        logits: `[len(draws), vocab_size]`, any float dtype; not changed.

    Raises:
        BadLogits: a row holds NaN or +inf, or nothing that may be drawn.
    """
    rows = logits.float()
    maximum, best = argmax(rows)
    _refuse_bad_rows(maximum, draws)
    token_ids: list[int] = best.tolist()
    allowed = rows
    early = [i for i, draw in enumerate(draws) if draw.request.num_output_tokens < draw.sampling.min_tokens]
    if early:
        allowed = _without_ends(rows, [(i, draws[i]) for i in early], eos_token_ids)
        maximum, best = argmax(allowed[early])
        _refuse_bad_rows(maximum, [draws[i] for i in early])
        for i, token_id in zip(early, best.tolist(), strict=True):
            token_ids[i] = token_id

    uncut = [i for i, draw in enumerate(draws) if not draw.is_greedy and not draw.is_cut]
    cut = [i for i, draw in enumerate(draws) if not draw.is_greedy and draw.is_cut]
    for indices, draw_tokens in ((uncut, _draw_uncut), (cut, _draw_cut)):
        if indices:
            drawn = draw_tokens(allowed[indices], [draws[i] for i in indices])
            for i, token_id in zip(indices, drawn, strict=True):
                token_ids[i] = token_id

    logprobs = _logprobs(rows, draws, token_ids)
    return tuple(
        SampledToken(draw.request.request_id, token_ids[i], *logprobs.get(i, (None, ())))
        for i, draw in enumerate(draws)
    )


def _refuse_bad_rows(maximum: Tensor, draws: Sequence[Draw]) -> None:
    """A maximum is NaN where any value is, infinite where one is too large or all are forbidden."""
    for draw, is_good in zip(draws, torch.isfinite(maximum).tolist(), strict=True):
        if not is_good:
            raise BadLogits(draw.request.request_id, draw.request.stop)


def _without_ends(rows: Tensor, draws: Sequence[tuple[int, Draw]], eos_token_ids: tuple[int, ...]) -> Tensor:
    """A copy in which these rows cannot end."""
    allowed = rows.clone()
    for i, draw in draws:
        allowed[i, end_token_ids(draw.sampling, eos_token_ids, rows.shape[1])] = -torch.inf
    return allowed


def _column(draws: Sequence[Draw], value: Callable[[Draw], float], like: Tensor, dtype: torch.dtype) -> Tensor:
    """One number of each draw, `[len(draws), 1]`, on the device of `like`."""
    return torch.tensor([[value(draw)] for draw in draws], dtype=dtype, device=like.device)


def _scaled(rows: Tensor, draws: Sequence[Draw]) -> Tensor:
    return rows / _column(draws, lambda draw: draw.sampling.temperature, rows, torch.float32)


def _weights(scaled: Tensor, maximum: Tensor) -> Tensor:
    return ((scaled - maximum).exp() * WEIGHT_ONE).long()


def _pick(cumulative: Tensor, draws: Sequence[Draw]) -> Tensor:
    """The column in whose share each row's random number falls, `[len(draws), 1]`."""
    total = cumulative[:, -1:]
    random = _column(draws, lambda draw: draw.random, cumulative, torch.float64)
    threshold = torch.minimum((random * total.double()).long(), total - 1)
    return torch.searchsorted(cumulative, threshold, right=True)


def _draw_uncut(rows: Tensor, draws: Sequence[Draw]) -> list[int]:
    scaled = _scaled(rows, draws)
    weights = _weights(scaled, scaled.amax(dim=-1, keepdim=True))
    drawn: list[int] = _pick(weights.cumsum(dim=-1), draws).squeeze(1).tolist()
    return drawn


def _draw_cut(rows: Tensor, draws: Sequence[Draw]) -> list[int]:
    """Draw under `top_k` and `top_p`, from the best tokens where they are sure to hold all that is kept."""
    vocab_size = rows.shape[1]
    scaled = _scaled(rows, draws)
    num_ranked = min(NUM_CANDIDATES, vocab_size)
    drawn, is_settled = _draw_from_ranked(scaled, draws, num_ranked)
    unsettled = [i for i, settled in enumerate(is_settled) if not settled]
    if unsettled:
        again, _ = _draw_from_ranked(scaled[unsettled], [draws[i] for i in unsettled], vocab_size)
        for i, token_id in zip(unsettled, again, strict=True):
            drawn[i] = token_id
    return drawn


def _draw_from_ranked(scaled: Tensor, draws: Sequence[Draw], num_ranked: int) -> tuple[list[int], list[bool]]:
    """Draw from the best `num_ranked` tokens; the second list says for which rows more could not change the token."""
    vocab_size = scaled.shape[1]
    values, ids = ranked(scaled, num_ranked)
    maximum = values[:, :1]
    top_k = _column(draws, lambda draw: min(draw.sampling.top_k or vocab_size, vocab_size), scaled, torch.int64)
    top_p = _column(draws, lambda draw: draw.sampling.top_p, scaled, torch.float64)

    rank = torch.arange(num_ranked, device=scaled.device)
    weights = _weights(values, maximum).masked_fill_(rank >= top_k, 0)
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:]
    if num_ranked < vocab_size:
        is_whole = top_k >= vocab_size  # these rows' total takes in tokens that were not ranked
        if bool(is_whole.any()):
            total = torch.where(is_whole, _weights(scaled, maximum).sum(dim=-1, keepdim=True), total)
    else:
        is_whole = torch.ones_like(top_k, dtype=torch.bool)
    wanted = (top_p * total.double()).ceil().long()
    # A token is kept while less than what is wanted lies before it; a weight of nought is never drawn.
    kept = weights.masked_fill_(cumulative - weights >= wanted, 0)
    is_settled = (top_k <= num_ranked) | (is_whole & (cumulative[:, -1:] >= wanted))
    columns = _pick(kept.cumsum(dim=-1), draws)
    return ids.gather(1, columns).squeeze(1).tolist(), is_settled.squeeze(1).tolist()


def ranked(values: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """The `num` largest of each row with their indices, largest first, equal ones by rising index."""
    num_columns = values.shape[1]
    if num >= num_columns:
        in_order = values.sort(dim=-1, descending=True, stable=True)
        return in_order.values, in_order.indices
    # One more than asked: where it equals the last one wanted, `topk` chose among equals at will.
    top, ids = values.topk(num + 1, dim=-1)
    is_ambiguous = top[:, num - 1] == top[:, num]
    ids = ids[:, :num].sort(dim=-1).values
    top, order = values.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    if bool(is_ambiguous.any()):
        full = values[is_ambiguous].sort(dim=-1, descending=True, stable=True)
        top[is_ambiguous], ids[is_ambiguous] = full.values[:, :num], full.indices[:, :num]
    return top, ids


def _logprobs(
    rows: Tensor, draws: Sequence[Draw], token_ids: Sequence[int]
) -> dict[int, tuple[float, tuple[tuple[int, float], ...]]]:
    """For the rows that ask: the drawn token's log-probability, and the most probable tokens' ones."""
    asking = [i for i, draw in enumerate(draws) if draw.sampling.logprobs is not None]
    if not asking:
        return {}
    logprobs = torch.log_softmax(rows[asking], dim=-1)
    drawn = logprobs.gather(1, torch.tensor([[token_ids[i]] for i in asking], device=rows.device)).squeeze(1).tolist()
    counts = [draws[i].sampling.logprobs or 0 for i in asking]
    most = max(counts)
    # Ranked by logit: two logits that differ may round to one log-probability.
    ids = ranked(rows[asking], most)[1] if most else torch.empty(len(asking), 0, dtype=torch.int64, device=rows.device)
    top_ids, top_values = ids.tolist(), logprobs.gather(1, ids).tolist()
    return {
        i: (drawn[row], tuple(zip(top_ids[row][: counts[row]], top_values[row][: counts[row]], strict=True)))
        for row, i in enumerate(asking)
    }
