"""Blocks that move between memories keep their bits, in order, and one that cannot move holds up no other."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tidegate_server.engine.batch import NO_COPIES, BlockCopies, BlockCopy
from tidegate_server.model.block_copier import BlockCopier
from tidegate_server.model.host_blocks import allocate_host_blocks

NUM_BLOCKS = 4
SHAPE = (NUM_BLOCKS + 1, 2, 2, 2, 16, 8)


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
            ],
        ),
    ]
)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def blocks(device: torch.device) -> Tensor:
    """Each holds its own number."""
    return torch.arange(NUM_BLOCKS + 1.0, device=device).view(-1, 1, 1, 1, 1, 1).repeat(1, *SHAPE[1:])


@pytest.fixture
def host_blocks(blocks: Tensor) -> Tensor:
    return allocate_host_blocks(NUM_BLOCKS, blocks)


@pytest.fixture
def copier(blocks: Tensor, host_blocks: Tensor) -> BlockCopier:
    return BlockCopier(blocks, host_blocks)


def held(blocks: Tensor) -> list[float]:
    """What each block holds, the same number in all its places."""
    assert torch.equal(blocks, blocks[:, :1, :1, :1, :1, :1].expand_as(blocks))
    return [float(number) for number in blocks[:, 0, 0, 0, 0, 0]]


def copies(*pairs: Sequence[int]) -> tuple[BlockCopy, ...]:
    return tuple(BlockCopy(source, target) for source, target in pairs)


def test_a_block_comes_back_from_the_host_as_it_left(copier: BlockCopier, blocks: Tensor, host_blocks: Tensor) -> None:
    assert copier.num_host_blocks == NUM_BLOCKS
    assert copier.copy(BlockCopies(swap_out=copies((1, 4), (3, 2)))) == NO_COPIES
    copier.wait()
    assert held(host_blocks) == [0, 0, 3, 0, 1]
    blocks.zero_()
    assert copier.copy(BlockCopies(swap_in=copies((4, 2), (2, 1)))) == NO_COPIES
    assert held(blocks) == [0, 3, 1, 0, 0]


def test_blocks_go_out_then_within_then_in(copier: BlockCopier, blocks: Tensor, host_blocks: Tensor) -> None:
    host_blocks[4] = 7.0
    # Block 2 makes room for what block 1 held, and block 1 for what comes in.
    copier.copy(BlockCopies(swap_out=copies((2, 1)), within=copies((1, 2), (1, 3)), swap_in=copies((4, 1))))
    copier.wait()
    assert held(host_blocks) == [0, 2, 0, 0, 7]
    assert held(blocks) == [0, 7, 1, 1, 4]


def test_a_block_that_goes_out_may_be_written_next(copier: BlockCopier, blocks: Tensor, host_blocks: Tensor) -> None:
    copier.copy(BlockCopies(swap_out=copies((1, 1), (2, 2), (3, 3))))
    copier.before_writing([2, 4])
    blocks[2] = 8.0
    blocks[4] = 8.0
    copier.wait()
    assert held(host_blocks) == [0, 1, 2, 3, 0]
    copier.copy(BlockCopies(swap_out=copies((2, 4))))
    copier.wait()
    assert held(host_blocks) == [0, 1, 2, 3, 8]


def test_what_was_computed_before_goes_out_and_what_comes_in_is_there_for_what_is_computed_next(
    copier: BlockCopier, blocks: Tensor, host_blocks: Tensor
) -> None:
    host_blocks[2] = 9.0
    for _ in range(200):  # a queue that a GPU is still at when the copies are asked for
        blocks[1].add_(1.0)
    copier.copy(BlockCopies(swap_out=copies((1, 1)), swap_in=copies((2, 3))))
    sums = blocks[3] + blocks[4]
    copier.wait()
    assert held(host_blocks)[1] == 201
    assert float(sums.min()) == float(sums.max()) == 13.0


def test_a_copy_that_fails_is_given_back_and_the_others_are_done(
    copier: BlockCopier, blocks: Tensor, host_blocks: Tensor
) -> None:
    nowhere = NUM_BLOCKS + 1
    failed = copier.copy(BlockCopies(swap_out=copies((1, 1), (2, nowhere), (3, 3)), within=copies((4, 2))))
    copier.wait()
    assert failed == BlockCopies(swap_out=copies((2, nowhere)))
    assert held(host_blocks) == [0, 1, 0, 3, 0]
    assert held(blocks) == [0, 1, 4, 3, 4]


def test_what_reads_the_target_of_a_failed_copy_fails_too(copier: BlockCopier) -> None:
    nowhere = NUM_BLOCKS + 1
    wanted = BlockCopies(swap_out=copies((nowhere, 1), (1, 2)), swap_in=copies((1, 3), (2, 4)))
    assert copier.copy(wanted) == BlockCopies(swap_out=copies((nowhere, 1)), swap_in=copies((1, 3)))


def test_a_lost_device_is_no_failed_copy(copier: BlockCopier, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, **__: object) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Tensor, "copy_", lost)
    with pytest.raises(torch.AcceleratorError):
        copier.copy(BlockCopies(swap_out=copies((1, 1))))


def test_without_host_blocks_nothing_goes_there(blocks: Tensor) -> None:
    copier = BlockCopier(blocks, allocate_host_blocks(0, blocks))
    assert copier.num_host_blocks == 0
    out = BlockCopies(swap_out=copies((1, 1)))
    assert copier.copy(out) == out
    assert copier.copy(BlockCopies(within=copies((1, 2)))) == NO_COPIES
    assert held(blocks) == [0, 1, 1, 3, 4]


def test_a_gpu_copies_to_page_locked_memory(host_blocks: Tensor, device: torch.device) -> None:
    assert host_blocks.is_pinned() == (device.type == "cuda")
    assert host_blocks.shape == SHAPE
    assert host_blocks[1].is_contiguous()
