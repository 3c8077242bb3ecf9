"""Known prefixes: which block holds the KV of which run of tokens."""

import struct
from collections.abc import KeysView, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NewType

BlockHash = NewType("BlockHash", bytes)  # names a full block and everything before it

_HASH_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class PrefixRoot:
    """Everything beside the tokens that changes the numbers in a block; blocks are shared within one root only."""

    model_revision: str
    kv_dtype: str
    adapter: str | None = None
    salt: str = ""  # a tenant's own: requests with different salts share nothing


class BlockHasher:
    """Chains 128-bit keyed hashes over full blocks.

    Args:
        key: up to 64 secret bytes. A hash takes the place of comparing tokens, so nobody outside may be able to
            compute two prompts with one hash.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def root(self, root: PrefixRoot) -> BlockHash:
        """The parent of every first block under this root."""
        parts = b"".join(
            _tagged(part) for part in ("tidegate-kv", root.model_revision, root.kv_dtype, root.adapter, root.salt)
        )
        return self._digest(parts)

    def block(self, parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
        """The hash of a full block of `token_ids` that follows `parent`."""
        return self._digest(parent + struct.pack(f"<{len(token_ids)}I", *token_ids))

    def _digest(self, data: bytes) -> BlockHash:
        return BlockHash(blake2b(data, digest_size=_HASH_BYTES, key=self._key).digest())


def _tagged(part: str | None) -> bytes:
    """A type tag, a length and the bytes: ("ab", "c") and ("a", "bc"), or None and "", must not encode alike."""
    if part is None:
        return b"n" + struct.pack("<Q", 0)
    encoded = part.encode()
    return b"s" + struct.pack("<Q", len(encoded)) + encoded


class PrefixCache:
    """Finds blocks by hash. Which of them may be lent anew, and in which order, is the block pool's matter."""

    def __init__(self) -> None:
        self._block_of: dict[BlockHash, int] = {}
        self._hash_of: dict[int, BlockHash] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def match(self, hashes: Sequence[BlockHash]) -> list[int]:
        """The blocks of the longest known beginning of `hashes`."""
        blocks: list[int] = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def find(self, block_hash: BlockHash) -> int | None:
        """The block with this content."""
        return self._block_of.get(block_hash)

    def blocks(self) -> KeysView[int]:
        """All that can be found."""
        return self._hash_of.keys()

    def knows(self, block: int) -> bool:
        return block in self._hash_of

    def insert(self, block_hash: BlockHash, block: int) -> bool:
        """Make a computed block findable; False when another block with the same content already is."""
        assert block not in self._hash_of, f"block {block} is known already"
        if block_hash in self._block_of:
            return False
        self._block_of[block_hash] = block
        self._hash_of[block] = block_hash
        return True

    def forget(self, block: int) -> BlockHash:
        """Drop a block's entry, because the block is about to hold something else; gives what it was found by."""
        block_hash = self._hash_of.pop(block)
        del self._block_of[block_hash]
        return block_hash
