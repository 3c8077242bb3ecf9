"""The block copies that the next step has to make before its forward pass."""

from tidegate_server.engine.batch import BlockCopies, BlockCopy


class PendingCopies:
    """Collects copies until a batch takes them along; keyed by target, since the last one into a block counts."""

    def __init__(self) -> None:
        self._swap_out: dict[int, int] = {}
        self._swap_in: dict[int, int] = {}
        self._within: dict[int, int] = {}

    def swap_out(self, device_block: int, host_block: int) -> None:
        self._swap_out[host_block] = device_block

    def swap_in(self, host_block: int, device_block: int) -> None:
        self._within.pop(device_block, None)
        self._swap_in[device_block] = host_block

    def within(self, source: int, target: int) -> None:
        self._swap_in.pop(target, None)
        self._within[target] = source

    def take(self) -> BlockCopies:
        """Everything so far, once."""
        copies = BlockCopies(_listed(self._swap_out), _listed(self._within), _listed(self._swap_in))
        for source_of in (self._swap_out, self._swap_in, self._within):
            source_of.clear()
        return copies


def _listed(source_of: dict[int, int]) -> tuple[BlockCopy, ...]:
    return tuple(BlockCopy(source, target) for target, source in source_of.items())
