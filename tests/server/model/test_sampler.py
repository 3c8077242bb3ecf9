"""The sampler, in torch and by the C library, against its definition, and what a client may count on."""

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.model.drawing import EOS, KINDS, draw, params, reference, tokens_within_rounding
from tidegate_kernels.cpu.library import ISAS, load_library, missing_because
from tidegate_server.engine.batch import SampledToken
from tidegate_server.errors import BadLogits
from tidegate_server.model.sampler import Draw, SamplerOps, sample
from tidegate_server.model.sampler_cpu import CpuSamplerOps
from tidegate_server.model.sampler_torch import TorchSamplerOps


@pytest.fixture(scope="module", params=["torch", *ISAS])
def ops(request: pytest.FixtureRequest) -> Iterator[SamplerOps]:
    if request.param == "torch":
        yield TorchSamplerOps()
        return
    library = load_library()
    if library is None:
        pytest.skip(missing_because())
    if request.param not in library.supported_isas():
        pytest.skip(f"this machine has no {request.param}")
    library.start(request.param, num_threads=2, cpus=None)
    yield CpuSamplerOps(library)
    library.stop()


def assert_agree(sampled: tuple[SampledToken, ...], logits: torch.Tensor, draws: list[Draw], ops: SamplerOps) -> None:
    """Torch to the bit. The library but for its own exp and log, which are within rounding of torch's."""
    for token, row, d in zip(sampled, logits, draws, strict=True):
        expected = reference(row, d)
        if isinstance(ops, TorchSamplerOps):
            assert token == expected
            continue
        if token.token_id != expected.token_id:
            assert token.token_id in tokens_within_rounding(row, d), d
            continue
        assert (token.request_id, token.logprob is None) == (expected.request_id, expected.logprob is None)
        assert [i for i, _ in token.top_logprobs] == [i for i, _ in expected.top_logprobs]
        if expected.logprob is not None:
            of_token, of_expected = ([t.logprob, *(value for _, value in t.top_logprobs)] for t in (token, expected))
            assert of_token == pytest.approx(of_expected, abs=2e-6, rel=1e-5)


@pytest.mark.parametrize("vocab_size", [8, 97, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_every_kind_agree_with_the_reference(ops: SamplerOps, vocab_size: int, dtype: torch.dtype) -> None:
    # bfloat16 has few values, so equal logits abound there.
    generator = torch.Generator().manual_seed(vocab_size)
    draws = [
        draw(f"{name} {seed}", sampling, position=5 + seed, seed=seed * 977, num_output_tokens=seed % 7)
        for seed in range(6)
        for name, sampling in KINDS.items()
    ]
    logits = (torch.randn(len(draws), vocab_size, generator=generator) * 3).to(dtype)
    assert_agree(sample(logits, draws, EOS, ops), logits, draws, ops)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.sampled_from([-2.0, 0.0, 0.5, 0.5000001, 3.0, float("-inf")]), min_size=9, max_size=40),
    temperature=st.floats(0.0, 4.0),
    top_p=st.floats(1e-9, 1.0),
    top_k=st.none() | st.integers(1, 50),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_rows_full_of_ties_agree_with_the_reference(
    ops: SamplerOps, values: list[float], temperature: float, top_p: float, top_k: int | None, seed: int
) -> None:
    logits = torch.tensor([[*values, 1.0]])
    draws = [draw("a", params(temperature=temperature, top_p=top_p, top_k=top_k, logprobs=3), seed=seed)]
    assert_agree(sample(logits, draws, EOS, ops), logits, draws, ops)


def test_a_row_keeps_its_bits_whoever_shares_the_batch(ops: SamplerOps) -> None:
    draws = [draw(f"{name} {seed}", kind, seed=seed) for seed in range(3) for name, kind in KINDS.items()]
    logits = torch.randn(len(draws), 49_152, generator=torch.Generator().manual_seed(3)) * 2
    together = sample(logits, draws, EOS, ops)
    for i, each in enumerate(draws):
        assert sample(logits[i : i + 1], [each], EOS, ops) == (together[i],)


def test_equal_logits_go_to_the_lowest_id(ops: SamplerOps) -> None:
    logits = torch.tensor([[1.0, 4.0, 4.0, 4.0]])
    assert sample(logits, [draw("a", params(temperature=0.0))], EOS, ops)[0].token_id == 1
    assert sample(logits, [draw("a", params(top_k=1))], EOS, ops)[0].token_id == 1


def test_draws_follow_the_probabilities(ops: SamplerOps) -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.15, 0.1])
    num = 4000
    draws = [draw("a", params(), seed=seed) for seed in range(num)]
    counts = Counter(t.token_id for t in sample(probabilities.log().expand(num, -1), draws, (), ops))
    for token_id, probability in enumerate(probabilities.tolist()):
        deviation = (probability * (1 - probability) * num) ** 0.5
        assert abs(counts[token_id] - probability * num) < 5 * deviation


def test_top_p_keeps_the_smallest_set_that_reaches_it(ops: SamplerOps) -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    for top_p, kept in ((0.39, {0}), (0.41, {0, 1}), (0.71, {0, 1, 2}), (0.95, {0, 1, 2, 3})):
        draws = [draw("a", params(top_p=top_p), seed=seed) for seed in range(400)]
        assert {t.token_id for t in sample(logits.expand(400, -1), draws, (), ops)} == kept


def test_end_tokens_wait_for_min_tokens(ops: SamplerOps) -> None:
    logits = torch.tensor([[0.0, 1.0, 9.0, 2.0, 3.0, 8.0]])
    sampling = params(temperature=0.0, min_tokens=3, stop_token_ids=(4,))
    tokens = [sample(logits, [draw("a", sampling, num_output_tokens=n)], EOS, ops)[0].token_id for n in range(5)]
    assert tokens == [3, 3, 3, 2, 2]


def test_logprobs_are_those_of_the_model_before_the_parameters(ops: SamplerOps) -> None:
    logits = torch.tensor([[0.1, 0.6, 0.3]]).log()
    sampling = params(temperature=0.3, top_k=1, logprobs=2)
    (token,) = sample(logits, [draw("a", sampling)], (), ops)
    assert token.logprob == pytest.approx(torch.tensor(0.6).log().item())
    assert [token_id for token_id, _ in token.top_logprobs] == [1, 2]
    assert token.top_logprobs[1][1] == pytest.approx(torch.tensor(0.3).log().item())


def test_nothing_asked_for_is_nothing_given(ops: SamplerOps) -> None:
    (token,) = sample(torch.zeros(1, 8), [draw("a", params())], EOS, ops)
    assert (token.logprob, token.top_logprobs) == (None, ())


@pytest.mark.parametrize("largest", [1e35, -1e35])
def test_a_row_that_overflows_under_its_temperature_is_named(ops: SamplerOps, largest: float) -> None:
    logits = torch.full((1, 4), largest)
    assert sample(logits, [draw("a", params(temperature=0.0))], EOS, ops)[0].token_id == 0
    with pytest.raises(BadLogits):
        sample(logits, [draw("a", params(temperature=1e-4))], EOS, ops)
    with pytest.raises(BadLogits):
        reference(logits[0], draw("a", params(temperature=1e-4)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_without_usable_numbers_is_named(ops: SamplerOps, bad: float) -> None:
    logits = torch.zeros(3, 8)
    logits[1, 4] = bad
    draws = [draw(name, params(temperature=0.0)) for name in ("good", "bad", "fine")]
    with pytest.raises(BadLogits) as caught:
        sample(logits, draws, EOS, ops)
    assert caught.value.request_id == "bad"


def test_a_row_in_which_nothing_may_be_drawn_is_named(ops: SamplerOps) -> None:
    logits = torch.full((1, 4), float("-inf"))
    with pytest.raises(BadLogits):
        sample(logits, [draw("a", params())], (), ops)


def test_logits_are_left_as_they_are(ops: SamplerOps) -> None:
    logits = torch.randn(2, 8)
    before = logits.clone()
    sample(logits, [draw("a", params(min_tokens=5)), draw("b", params(top_p=0.5))], EOS, ops)
    assert torch.equal(logits, before)
