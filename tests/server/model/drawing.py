"""Draws for the sampler's tests, what its definition makes of them, and how far its own rounding may move that."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec
from torch import Tensor

from tidegate_server.engine.batch import RequestId, SampledToken, ScheduledRequest
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.model import sampler_reference
from tidegate_server.model.draw import uniform
from tidegate_server.model.sampler import Draw
from tidegate_server.model.sampler_reference import sample_row

EOS = (2, 5)

NUDGE = 1e-6
"""How far, of the whole, the library's exp and its rounding may move the edge of a token's share."""


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 8} | fields)


def draw(name: str, sampling: SamplingParams, position: int = 10, seed: int = 0, num_output_tokens: int = 0) -> Draw:
    request = ScheduledRequest(
        request_id=RequestId(name),
        start=position - 1,
        token_ids=(1,),
        block_table=(1,),
        sampling=sampling,
        seed=seed,
        num_output_tokens=num_output_tokens,
    )
    return Draw(request, sampling)


def reference(row: Tensor, d: Draw) -> SampledToken:
    request = d.request
    return sample_row(row, request.request_id, d.sampling, request.seed, request.stop, request.num_output_tokens, EOS)


def tokens_within_rounding(row: Tensor, d: Draw) -> set[int]:
    """What the reference draws with the random number and `top_p` a little to either side."""
    factors = (1 - NUDGE, 1.0, 1 + NUDGE)
    top_p = d.sampling.top_p
    nudged = {min(top_p * factor, 1 - 1e-9) for factor in factors} if top_p < 1.0 else {top_p}
    found = set()
    for factor in factors:
        with patch.object(sampler_reference, "uniform", lambda *key, by=factor: min(uniform(*key) * by, 1 - 2**-53)):
            found |= {
                reference(row, replace(d, sampling=msgspec.structs.replace(d.sampling, top_p=p))).token_id
                for p in nudged
            }
    return found


KINDS = {
    "greedy": params(temperature=0.0),
    "whole vocabulary": params(temperature=0.8),
    "top_p": params(temperature=1.2, top_p=0.9),
    "narrow top_p": params(top_p=1e-6),
    "top_k": params(top_k=7),
    "top_k of one": params(top_k=1, temperature=5.0),
    "top_k over the vocabulary": params(top_k=10**6, top_p=0.99),
    "both": params(top_k=20, top_p=0.5, temperature=2.0),
    "another choice": params(choice=3),
    "min_tokens": params(temperature=0.0, min_tokens=4, stop_token_ids=(7, 8)),
    "min_tokens, sampled": params(min_tokens=4, ignore_eos=True, stop_token_ids=(0,), top_p=0.95),
    "logprobs": params(temperature=0.0, logprobs=5),
    "logprob of the drawn alone": params(logprobs=0, top_k=3),
    "flat": params(temperature=100.0, top_p=0.999),
    "as flat as fp32 gets": params(temperature=3.4028234663852886e38, min_tokens=4, stop_token_ids=(7,)),
}
