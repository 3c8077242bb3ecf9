"""How the sampler finds the best tokens in torch."""

import pytest
import torch

from tests.server.model.drawing import EOS, KINDS, draw
from tidegate_server.model import sampler_torch
from tidegate_server.model.sampler import sample
from tidegate_server.model.sampler_torch import TorchSamplerOps, ranked


@pytest.mark.parametrize("num_candidates", [1, 3, 64])
def test_the_number_of_candidates_changes_no_token(monkeypatch: pytest.MonkeyPatch, num_candidates: int) -> None:
    draws = [draw(f"{name} {seed}", kind, seed=seed) for seed in range(8) for name, kind in KINDS.items()]
    logits = torch.randn(len(draws), 300, generator=torch.Generator().manual_seed(1))
    usual = sample(logits, draws, EOS, TorchSamplerOps())
    monkeypatch.setattr(sampler_torch, "NUM_CANDIDATES", num_candidates)
    assert sample(logits, draws, EOS, TorchSamplerOps()) == usual


@pytest.mark.parametrize("num", [1, 4, 11, 12])
def test_ranking_breaks_ties_by_index(num: int) -> None:
    values = torch.tensor(
        [[3.0, 1.0, 3.0, 3.0, 2.0, 3.0, 0.0, 3.0, 3.0, 2.0, 3.0, 1.0], [float(-i) for i in range(12)]]
    )
    top, ids = ranked(values, num)
    expected = [sorted(range(12), key=lambda i: (-row[i], i))[:num] for row in values.tolist()]
    assert ids.tolist() == expected
    assert torch.equal(top, values.gather(1, ids))
