"""The vectorised sampler against its definition, and what a client may count on."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_server.engine.batch import RequestId, SampledToken, ScheduledRequest
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.errors import BadLogits
from tidegate_server.model import sampler
from tidegate_server.model.sampler import Draw, ranked, sample
from tidegate_server.model.sampler_reference import sample_row

EOS = (2, 5)


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


def reference(logits: torch.Tensor, draws: list[Draw]) -> tuple[SampledToken, ...]:
    return tuple(
        sample_row(
            row,
            d.request.request_id,
            d.sampling,
            d.request.seed,
            d.request.stop,
            d.request.num_output_tokens,
            EOS,
        )
        for row, d in zip(logits, draws, strict=True)
    )


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
}


@pytest.mark.parametrize("vocab_size", [8, 97, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_every_kind_agree_with_the_reference(vocab_size: int, dtype: torch.dtype) -> None:
    # bfloat16 has few values, so equal logits abound there.
    generator = torch.Generator().manual_seed(vocab_size)
    draws = [
        draw(f"{name} {seed}", sampling, position=5 + seed, seed=seed * 977, num_output_tokens=seed % 7)
        for seed in range(6)
        for name, sampling in KINDS.items()
    ]
    logits = (torch.randn(len(draws), vocab_size, generator=generator) * 3).to(dtype)
    assert sample(logits, draws, EOS) == reference(logits, draws)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.sampled_from([-2.0, 0.0, 0.5, 0.5000001, 3.0, float("-inf")]), min_size=9, max_size=40),
    temperature=st.floats(0.0, 4.0),
    top_p=st.floats(1e-9, 1.0),
    top_k=st.none() | st.integers(1, 50),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_rows_full_of_ties_agree_with_the_reference(
    values: list[float], temperature: float, top_p: float, top_k: int | None, seed: int
) -> None:
    logits = torch.tensor([[*values, 1.0]])
    draws = [draw("a", params(temperature=temperature, top_p=top_p, top_k=top_k, logprobs=3), seed=seed)]
    assert sample(logits, draws, EOS) == reference(logits, draws)


@pytest.mark.parametrize("num_candidates", [1, 3, 64])
def test_the_number_of_candidates_changes_no_token(monkeypatch: pytest.MonkeyPatch, num_candidates: int) -> None:
    draws = [draw(f"{name} {seed}", kind, seed=seed) for seed in range(8) for name, kind in KINDS.items()]
    logits = torch.randn(len(draws), 300, generator=torch.Generator().manual_seed(1))
    usual = sample(logits, draws, EOS)
    monkeypatch.setattr(sampler, "NUM_CANDIDATES", num_candidates)
    assert sample(logits, draws, EOS) == usual


def test_a_row_keeps_its_bits_whoever_shares_the_batch() -> None:
    draws = [draw(f"{name} {seed}", kind, seed=seed) for seed in range(3) for name, kind in KINDS.items()]
    logits = torch.randn(len(draws), 49_152, generator=torch.Generator().manual_seed(3)) * 2
    together = sample(logits, draws, EOS)
    for i, each in enumerate(draws):
        assert sample(logits[i : i + 1], [each], EOS) == (together[i],)


def test_equal_logits_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[1.0, 4.0, 4.0, 4.0]])
    assert sample(logits, [draw("a", params(temperature=0.0))], EOS)[0].token_id == 1
    assert sample(logits, [draw("a", params(top_k=1))], EOS)[0].token_id == 1


def test_draws_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.15, 0.1])
    num = 4000
    draws = [draw("a", params(), seed=seed) for seed in range(num)]
    counts = Counter(t.token_id for t in sample(probabilities.log().expand(num, -1), draws, ()))
    for token_id, probability in enumerate(probabilities.tolist()):
        deviation = (probability * (1 - probability) * num) ** 0.5
        assert abs(counts[token_id] - probability * num) < 5 * deviation


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    for top_p, kept in ((0.39, {0}), (0.41, {0, 1}), (0.71, {0, 1, 2}), (0.95, {0, 1, 2, 3})):
        draws = [draw("a", params(top_p=top_p), seed=seed) for seed in range(400)]
        assert {t.token_id for t in sample(logits.expand(400, -1), draws, ())} == kept


def test_end_tokens_wait_for_min_tokens() -> None:
    logits = torch.tensor([[0.0, 1.0, 9.0, 2.0, 3.0, 8.0]])
    sampling = params(temperature=0.0, min_tokens=3, stop_token_ids=(4,))
    tokens = [sample(logits, [draw("a", sampling, num_output_tokens=n)], EOS)[0].token_id for n in range(5)]
    assert tokens == [3, 3, 3, 2, 2]


def test_logprobs_are_those_of_the_model_before_the_parameters() -> None:
    logits = torch.tensor([[0.1, 0.6, 0.3]]).log()
    sampling = params(temperature=0.3, top_k=1, logprobs=2)
    (token,) = sample(logits, [draw("a", sampling)], ())
    assert token.logprob == pytest.approx(torch.tensor(0.6).log().item())
    assert [token_id for token_id, _ in token.top_logprobs] == [1, 2]
    assert token.top_logprobs[1][1] == pytest.approx(torch.tensor(0.3).log().item())


def test_nothing_asked_for_is_nothing_given() -> None:
    (token,) = sample(torch.zeros(1, 8), [draw("a", params())], EOS)
    assert (token.logprob, token.top_logprobs) == (None, ())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_without_usable_numbers_is_named(bad: float) -> None:
    logits = torch.zeros(3, 8)
    logits[1, 4] = bad
    draws = [draw(name, params(temperature=0.0)) for name in ("good", "bad", "fine")]
    with pytest.raises(BadLogits) as caught:
        sample(logits, draws, EOS)
    assert caught.value.request_id == "bad"


def test_a_row_in_which_nothing_may_be_drawn_is_named() -> None:
    logits = torch.full((1, 4), float("-inf"))
    with pytest.raises(BadLogits):
        sample(logits, [draw("a", params())], ())


def test_logits_are_left_as_they_are() -> None:
    logits = torch.randn(2, 8)
    before = logits.clone()
    sample(logits, [draw("a", params(min_tokens=5)), draw("b", params(top_p=0.5))], EOS)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("num", [1, 4, 11, 12])
def test_ranking_breaks_ties_by_index(num: int) -> None:
    values = torch.tensor(
        [[3.0, 1.0, 3.0, 3.0, 2.0, 3.0, 0.0, 3.0, 3.0, 2.0, 3.0, 1.0], [float(-i) for i in range(12)]]
    )
    top, ids = ranked(values, num)
    expected = [sorted(range(12), key=lambda i: (-row[i], i))[:num] for row in values.tolist()]
    assert ids.tolist() == expected
    assert torch.equal(top, values.gather(1, ids))
