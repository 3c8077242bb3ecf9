"""`SamplerOps` in torch, on any device.

What is summed across a row are whole numbers, whose sum has no order, and everything else is computed element by
element, so that a row keeps its tokens whoever shares the batch.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tidegate_server.model.sampler import Draw, Row, TokenLogprobs
from tidegate_server.model.sampler_reference import WEIGHT_ONE

NUM_CANDIDATES = 1024
"""How many of the best tokens `top_p` looks at before it ranks the whole vocabulary: ranking 49,152 takes a CPU core
some 4 ms a row, finding the best 1,024 about a tenth. Any number gives the same tokens."""


class TorchSamplerOps:
    """See `sampler.SamplerOps`."""

    def argmax(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        best = rows.max(dim=-1)  # on ties it gives the first, which is the lowest id
        return best.values, best.indices

    def draw(self, rows: Sequence[Row], draws: Sequence[Draw]) -> list[int]:
        token_ids = [0] * len(draws)
        uncut = [i for i, draw in enumerate(draws) if not draw.is_cut]
        cut = [i for i, draw in enumerate(draws) if draw.is_cut]
        for indices, draw_tokens in ((uncut, _draw_uncut), (cut, _draw_cut)):
            if indices:
                drawn = draw_tokens(_stacked([rows[i] for i in indices]), [draws[i] for i in indices])
                for i, token_id in zip(indices, drawn, strict=True):
                    token_ids[i] = token_id
        return token_ids

    def logprobs(self, rows: Sequence[Row], token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
        logits = _stacked(rows)
        logprobs = torch.log_softmax(logits, dim=-1)
        drawn = logprobs.gather(1, torch.tensor(token_ids, device=logits.device).unsqueeze(1)).squeeze(1).tolist()
        most = max(num_top)
        # Ranked by logit: two logits that differ may round to one log-probability.
        ids = ranked(logits, most)[1] if most else torch.empty(len(rows), 0, dtype=torch.int64, device=logits.device)
        top_ids, top_values = ids.tolist(), logprobs.gather(1, ids).tolist()
        return [
            TokenLogprobs(drawn[i], tuple(zip(top_ids[i][:num], top_values[i][:num], strict=True)))
            for i, num in enumerate(num_top)
        ]


def _stacked(rows: Sequence[Row]) -> Tensor:
    return torch.stack([row.logits for row in rows])


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
