"""How a request loses its blocks, and why: small fixed sets, for they label metrics."""

from enum import StrEnum


class PreemptionKind(StrEnum):
    """What a preempted request gives up."""

    RECOMPUTE = "recompute"  # every block; its tokens are computed again
    SWAP = "swap"  # its blocks on the device; they come back from host memory
    TAIL = "tail"  # its last blocks only


class PreemptionReason(StrEnum):
    """What a request is preempted for."""

    BLOCKS = "blocks"  # a request that goes before it needs a block
    SEATS = "seats"  # as many requests run as may, and one of higher priority waits
    FORCED = "forced"  # it was asked for, or its copied blocks were lost
