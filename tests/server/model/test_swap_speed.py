"""The speed of swapping is that of the slower direction, and trying it changes no block of the device."""

import itertools

import pytest
import torch
from torch import Tensor

from tidegate_server.engine.batch import BlockCopies
from tidegate_server.model.block_copier import BlockCopier
from tidegate_server.model.host_blocks import allocate_host_blocks
from tidegate_server.model.swap_speed import NUM_TRIED, measure_swap_speed

SHAPE = (5, 2, 2, 2, 16, 8)
BLOCK_BYTES = 2 * 2 * 2 * 16 * 8 * 4


class SlowCopier(BlockCopier):
    """Takes as many seconds as it is told for each block, on a clock of its own."""

    def __init__(self, num_blocks: int, out_s: float, in_s: float, device_blocks: Tensor | None = None) -> None:
        blocks = torch.zeros(SHAPE) if device_blocks is None else device_blocks
        super().__init__(blocks, allocate_host_blocks(num_blocks, blocks))
        self.out_s, self.in_s = out_s, in_s
        self.now_s = 0.0
        self.late_s = itertools.cycle((5.0, 0.0))  # every other time somebody else has the machine
        self.num_copied: set[int] = set()  # at once

    def copy(self, copies: BlockCopies) -> BlockCopies:
        self.num_copied.add(len(copies.swap_out) + len(copies.swap_in))
        self.now_s += len(copies.swap_out) * self.out_s + len(copies.swap_in) * self.in_s + next(self.late_s)
        return super().copy(copies)


@pytest.mark.parametrize(("out_s", "in_s"), [(0.25, 0.5), (0.5, 0.125)])
def test_the_slower_direction_counts_at_its_best(out_s: float, in_s: float) -> None:
    copier = SlowCopier(4, out_s, in_s)
    assert measure_swap_speed(copier, 4, BLOCK_BYTES, lambda: copier.now_s) == pytest.approx(BLOCK_BYTES * 2)


@pytest.mark.parametrize(
    ("num_blocks", "num_host_blocks", "num_tried"),
    [
        pytest.param(2, 4, 2, id="few on the device"),
        pytest.param(4, 3, 3, id="few on the host"),
        pytest.param(2 * NUM_TRIED, 2 * NUM_TRIED, NUM_TRIED, id="many"),
    ],
)
def test_no_more_is_tried_than_there_is_or_is_needed(num_blocks: int, num_host_blocks: int, num_tried: int) -> None:
    copier = SlowCopier(num_host_blocks, 1.0, 1.0, torch.zeros(num_blocks + 1, *SHAPE[1:]))
    measure_swap_speed(copier, num_blocks, BLOCK_BYTES, lambda: copier.now_s)
    assert copier.num_copied == {num_tried}


def test_the_device_s_blocks_hold_what_they_held() -> None:
    blocks = torch.rand(SHAPE)
    before = blocks.clone()
    assert measure_swap_speed(SlowCopier(4, 1.0, 1.0, blocks), 4, BLOCK_BYTES) > 0
    assert torch.equal(blocks, before)


def test_without_host_blocks_there_is_no_speed() -> None:
    copier = SlowCopier(0, 1.0, 1.0)
    assert measure_swap_speed(copier, 4, BLOCK_BYTES, lambda: copier.now_s) == 0.0
