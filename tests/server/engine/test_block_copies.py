"""The copies of a step: the last one into a block counts, and each is made once."""

from tidegate_server.engine.batch import NO_COPIES, BlockCopies, BlockCopy
from tidegate_server.engine.block_copies import PendingCopies


def test_copies_are_taken_once() -> None:
    copies = PendingCopies()
    copies.swap_out(device_block=1, host_block=7)
    copies.within(source=2, target=3)
    copies.swap_in(host_block=8, device_block=4)
    assert copies.take() == BlockCopies((BlockCopy(1, 7),), (BlockCopy(2, 3),), (BlockCopy(8, 4),))
    assert copies.take() == NO_COPIES


def test_a_block_that_is_filled_anew_forgets_what_it_should_have_held() -> None:
    copies = PendingCopies()
    copies.swap_in(host_block=8, device_block=4)
    copies.within(source=2, target=4)
    copies.within(source=2, target=5)
    copies.swap_in(host_block=8, device_block=5)
    copies.swap_out(device_block=1, host_block=9)
    copies.swap_out(device_block=2, host_block=9)
    assert copies.take() == BlockCopies((BlockCopy(2, 9),), (BlockCopy(2, 4),), (BlockCopy(8, 5),))
