"""The alphabet in which byte-level tokenizers write bytes: one printable character for each of the 256."""

from collections.abc import Mapping
from typing import Final


def _characters() -> dict[int, str]:
    """Printable Latin-1 bytes stand for themselves; the others take characters from U+0100 on, in order.

    Source:
        GPT-2's byte-level BPE, Radford et al. 2019.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


CHARACTER_OF_BYTE: Final[Mapping[int, str]] = _characters()
BYTE_OF_CHARACTER: Final[Mapping[str, int]] = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}
