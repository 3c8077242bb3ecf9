"""Draws in C: the reference's token whatever the row looks like, and the same one in any company."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.server.model.drawing import draw, params, reference, tokens_within_rounding
from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.structs import TgDraw, TgDrawRow
from tidegate_server.model.sampler import Draw

UNTOUCHED = -7
BELOW_ONE = 1 - 2**-53  # the largest random number

# Sizes 1, odd, one off a vector (16) and off a part whose weights are summed together (1,024).
SIZES = (1, 15, 16, 17, 33, 1023, 1024, 1025, 2100)
KINDS = {
    "whole vocabulary": params(temperature=0.7),
    "top_p": params(top_p=0.9),
    "narrow top_p": params(top_p=1e-6),
    "a tenth": params(top_p=0.1),
    "nearly all": params(temperature=3.0, top_p=1 - 1e-9),
    "top_k": params(top_k=7),
    "top_k of one": params(top_k=1, temperature=50.0),
    "top_k of many": params(top_k=900, temperature=2.0),
    "top_k of more than there are": params(top_k=10**6),
    "both": params(top_k=40, top_p=0.8, temperature=1.3),
    "so hot that quotients become equal": params(top_k=9, top_p=0.9, temperature=1e38),
    "so cold that one is left": params(temperature=1e-4, top_p=0.9),
}


def in_nan(row: Tensor) -> Tensor:
    """The row in memory of its own, at no even address, with NaN before and behind."""
    around = torch.full((len(row) + 40,), torch.nan)
    around[5 : 5 + len(row)] = row
    return around[5 : 5 + len(row)]


def draw_tokens(library: Library, rows: Sequence[Tensor], draws: Sequence[Draw]) -> list[int]:
    token_ids = torch.full((len(rows) + 2,), UNTOUCHED)
    structs = [
        TgDrawRow(
            x=row.data_ptr(),
            random=d.random,
            top_p=d.sampling.top_p,
            top_k=d.sampling.top_k or 0,
            maximum=float(row.max()),
            temperature=d.sampling.temperature,
        )
        for row, d in zip(rows, draws, strict=True)
    ]
    library.run_draw(
        TgDraw(
            rows=(TgDrawRow * len(structs))(*structs),
            token_ids=token_ids[1:].data_ptr(),
            m=len(structs),
            n=len(rows[0]) if rows else 0,
        )
    )
    assert token_ids[[0, -1]].tolist() == [UNTOUCHED, UNTOUCHED]
    drawn: list[int] = token_ids[1:-1].tolist()
    return drawn


def assert_drawn(library: Library, rows: Sequence[Tensor], draws: Sequence[Draw]) -> None:
    for token_id, row, d in zip(draw_tokens(library, rows, draws), rows, draws, strict=True):
        if token_id != reference(row, d).token_id:
            assert token_id in tokens_within_rounding(row, d), d


def draws_of_each_kind(num_seeds: int) -> list[Draw]:
    return [draw(name, kind, seed=seed * 977) for seed in range(num_seeds) for name, kind in KINDS.items()]


@pytest.mark.parametrize("size", SIZES)
def test_rows_of_every_size_get_the_references_token(library: Library, size: int) -> None:
    draws = draws_of_each_kind(num_seeds=4)
    generator = torch.Generator().manual_seed(size)
    assert_drawn(library, [in_nan(torch.randn(size, generator=generator) * 3) for _ in draws], draws)


@pytest.mark.parametrize(
    "row",
    [
        torch.arange(1500) * 0.01,
        torch.arange(1500) * -0.01,
        torch.full((1500,), -3.0),
        torch.arange(1500) % 2 * 1.0,
        torch.where(torch.arange(1500) == 1201, 60.0, torch.arange(1500) % 5),
        torch.where(torch.arange(1500) == 700, 5.0, torch.zeros(1500)),
        torch.where(torch.arange(1500) % 700 == 699, 0.5, -torch.inf),
        torch.where(torch.arange(1500) < 800, -0.0, 0.0),
        torch.linspace(-90, 90, 1500),
        (torch.randn(1500, generator=torch.Generator().manual_seed(0)) * 2).bfloat16().float(),
    ],
    ids=[
        "rising",
        "falling",
        "equal",
        "two values",
        "one far above",
        "one a little above",
        "nearly all forbidden",
        "noughts",
        "wide",
        "ties",
    ],
)
def test_rows_of_every_look_get_the_references_token(library: Library, row: Tensor) -> None:
    draws = draws_of_each_kind(num_seeds=6)
    assert_drawn(library, [in_nan(row)] * len(draws), draws)


def draw_from_equals(library: Library, randoms: Sequence[float], top_k: int, top_p: float) -> list[int]:
    """One draw with each random number, from 64 tokens of the same weight."""
    row, token_ids = torch.zeros(64), torch.full((len(randoms),), UNTOUCHED)
    structs = [
        TgDrawRow(x=row.data_ptr(), random=random, top_p=top_p, top_k=top_k, maximum=0.0, temperature=1.0)
        for random in randoms
    ]
    rows = (TgDrawRow * len(structs))(*structs)
    library.run_draw(TgDraw(rows=rows, token_ids=token_ids.data_ptr(), m=len(structs), n=64))
    drawn: list[int] = token_ids.tolist()
    return drawn


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (64, 1.0), (0, BELOW_ONE), (1000, BELOW_ONE)])
def test_every_token_is_drawn_where_its_share_begins_and_ends(library: Library, top_k: int, top_p: float) -> None:
    begins, ends = [i / 64 for i in range(64)], [(i + 1) / 64 - 2**-53 for i in range(64)]
    assert draw_from_equals(library, begins, top_k, top_p) == list(range(64))
    assert draw_from_equals(library, ends, top_k, top_p) == list(range(64))


def test_top_p_keeps_no_token_more_than_it_wants(library: Library) -> None:
    assert draw_from_equals(library, [BELOW_ONE], top_k=0, top_p=0.5) == [31]
    assert draw_from_equals(library, [BELOW_ONE], top_k=0, top_p=0.5 + 2**-53) == [32]


def test_no_rows_are_no_tokens(library: Library) -> None:
    assert draw_tokens(library, [], []) == []


def test_a_row_gets_its_token_alone_with_mates_and_on_any_threads(loaded: Library) -> None:
    draws = draws_of_each_kind(num_seeds=30)
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randn(5003, generator=generator) for _ in draws]
    of_each = []
    for isa in loaded.supported_isas():
        for num_threads in (1, 2, 3):
            loaded.start(isa, num_threads, cpus=None)
            of_each.append(draw_tokens(loaded, rows, draws))
        of_each.append([draw_tokens(loaded, [row], [d])[0] for row, d in zip(rows, draws, strict=True)])
        of_each.append(draw_tokens(loaded, rows[::-1], draws[::-1])[::-1])
        loaded.stop()
    for drawn in of_each[1:]:
        assert drawn == of_each[0]
