"""One draw in plain Python over a whole row: the definition that the vectorised sampler must agree with."""

import math

import torch
from torch import Tensor

from tidegate_server.engine.batch import RequestId, SampledToken
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.errors import BadLogits
from tidegate_server.model.draw import uniform

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: dividing by them leaves one token, or overflows."""

WEIGHT_ONE = float(1 << 40)
"""Weight of the most probable token. Weights are whole numbers so that their sums do not depend on the order of
summing; a token 2**40 times less probable than the best cannot be drawn. 2**22 tokens fit into 63 bits."""

LARGEST_SCALED = 1e38
"""A row whose largest logit divided by the temperature is further from nought than this is refused: fp32 ends soon
after, and differences of infinities are no numbers."""


def is_usable(maximum: float, temperature: float) -> bool:
    """Whether a row with this largest logit can be drawn from: a NaN or +inf is largest, -inf where nothing is left."""
    if temperature < GREEDY_BELOW:
        return math.isfinite(maximum)
    return abs(maximum) <= LARGEST_SCALED * min(temperature, 1.0)


def sample_row(
    logits: Tensor,
    request_id: RequestId,
    sampling: SamplingParams,
    seed: int,
    position: int,
    num_output_tokens: int,
    eos_token_ids: tuple[int, ...],
) -> SampledToken:
    """Draw one token.

    Tokens are ordered by falling logit, equal ones by rising id. `top_k` keeps the first k; `top_p` keeps, of these,
    every token before which less than `top_p` of their weight lies. Of what is kept, the draw takes the token in whose
    share of the weight the random number falls: in rank order when something was cut off, else in order of ids.

    Args:
        logits: `[vocab_size]`, any float dtype.
        position: of the token to draw, prompt included.

    Raises:
        BadLogits: a value is NaN or +inf, or none is finite, or the largest overflows under the temperature.
    """
    row = logits.float()
    if not is_usable(float(row.max()), sampling.temperature):
        raise BadLogits(request_id, position)
    allowed = row.clone()
    if num_output_tokens < sampling.min_tokens:
        allowed[end_token_ids(sampling, eos_token_ids, len(row))] = -torch.inf
        if not is_usable(float(allowed.max()), sampling.temperature):
            raise BadLogits(request_id, position)

    if sampling.temperature < GREEDY_BELOW:
        token_id = _ranked(allowed)[0]
    else:
        token_id = _draw(allowed / sampling.temperature, sampling, uniform(seed, position, sampling.choice))
    if sampling.logprobs is None:
        return SampledToken(request_id, token_id)
    logprobs = torch.log_softmax(row, dim=-1)
    top = tuple((i, float(logprobs[i])) for i in _ranked(row)[: sampling.logprobs])
    return SampledToken(request_id, token_id, float(logprobs[token_id]), top)


def end_token_ids(sampling: SamplingParams, eos_token_ids: tuple[int, ...], vocab_size: int) -> list[int]:
    """Tokens that end this request; a client may name some that the vocabulary does not have."""
    ends = sampling.stop_token_ids if sampling.ignore_eos else (*eos_token_ids, *sampling.stop_token_ids)
    return [token_id for token_id in ends if 0 <= token_id < vocab_size]


def _ranked(values: Tensor) -> list[int]:
    as_list = values.tolist()
    return sorted(range(len(as_list)), key=lambda i: (-as_list[i], i))


def _draw(scaled: Tensor, sampling: SamplingParams, random: float) -> int:
    weights = ((scaled - scaled.max()).exp() * WEIGHT_ONE).long().tolist()
    kept = list(range(len(weights)))
    if sampling.top_k is not None or sampling.top_p < 1.0:
        kept = _ranked(scaled)[: sampling.top_k]
        total = sum(weights[i] for i in kept)
        wanted = math.ceil(sampling.top_p * float(total))
        before, num_kept = 0, 0
        while num_kept < len(kept) and before < wanted:
            before += weights[kept[num_kept]]
            num_kept += 1
        kept = kept[:num_kept]

    total = sum(weights[i] for i in kept)
    threshold = min(int(random * float(total)), total - 1)  # the product may round up to the total
    below = 0
    for token_id in kept:
        below += weights[token_id]
        if threshold < below:
            return token_id
    raise AssertionError("the threshold lies below the total")
