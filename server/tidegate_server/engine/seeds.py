"""A seed for each request that brings none."""

import struct
from hashlib import blake2b


def derive_seed(root_seed: int, arrival: int) -> int:
    """A seed in [0, 2**63): the same for the same engine seed and number of arrival, unlike for any other pair."""
    data = f"{root_seed}:{arrival}".encode()
    (value,) = struct.unpack("<Q", blake2b(data, digest_size=8).digest())
    return int(value) >> 1
