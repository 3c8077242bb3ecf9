"""The fewest tokens that a text can have, told from its length, so that a hopeless one need not be encoded."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import models

from tidegate_server.text.byte_alphabet import CHARACTER_OF_BYTE

# Composing makes one character of at most so many: no character decomposes into more. Unicode Standard Annex 15.
NFC_SHRINKAGE = 4

# Every character past ASCII has one of these among its bytes.
CONTINUATION_BYTES = range(0x80, 0xC0)


@dataclass(frozen=True, slots=True)
class TokenBound:
    """How much text one token can stand for."""

    longest_token: int  # characters, as a client writes them
    vanishing: str = ""  # characters that may be encoded as nothing

    def fewest_tokens(self, text: str) -> int:
        """No encoding of the text has fewer."""
        # Looking for a character is eight times faster than counting it, and these are rare.
        num_vanishing = sum(text.count(character) for character in self.vanishing if character in text)
        return (len(text) - num_vanishing) // self.longest_token


def token_bound(backend: tokenizers.Tokenizer) -> TokenBound | None:
    """The bound of a tokenizer; None where a token can stand for any length of text."""
    shrinkage = _shrinkage(_parts(backend.normalizer))
    steps = _parts(backend.pre_tokenizer)
    if shrinkage is None or not all(_keeps_text(step) for step in steps) or _has_greedy_tokens(backend):
        return None
    vocabulary = backend.get_vocab(with_added_tokens=True)
    vanishing = _vanishing(backend.model, vocabulary, is_byte_level=any(step["type"] == "ByteLevel" for step in steps))
    if vanishing is None or (vanishing and shrinkage > 1):  # what composes might be written anew as what vanishes
        return None
    return TokenBound(max(map(len, vocabulary)) * shrinkage, vanishing)


def _parts(component: Any) -> list[dict[str, Any]]:
    """A normalizer's or pre-tokenizer's settings, or those of its parts."""
    if component is None:
        return []
    return _flat(json.loads(component.__getstate__()))


def _flat(settings: dict[str, Any]) -> list[dict[str, Any]]:
    if settings["type"] != "Sequence":
        return [settings]
    parts: Sequence[dict[str, Any]] = settings.get("normalizers") or settings.get("pretokenizers") or ()
    return [each for part in parts for each in _flat(part)]


def _shrinkage(normalizers: Sequence[dict[str, Any]]) -> int | None:
    """Characters of a text that become one at most; None: any number may be dropped."""
    shrinkage = 1
    for normalizer in normalizers:
        match normalizer:
            case {"type": "NFC"}:
                shrinkage *= NFC_SHRINKAGE
            case {"type": "Prepend"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if len(new) >= len(old):
                pass
            case _:
                return None
    return shrinkage


def _keeps_text(pre_tokenizer: dict[str, Any]) -> bool:
    match pre_tokenizer:
        case {"type": "ByteLevel" | "Digits" | "Metaspace"}:
            return True
        case {"type": "Split", "behavior": behavior}:
            return bool(behavior != "Removed")
        case _:
            return False


def _has_greedy_tokens(backend: tokenizers.Tokenizer) -> bool:
    """Whether some token takes in all the blanks beside it."""
    return any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values())


def _vanishing(model: models.Model, vocabulary: dict[str, int], *, is_byte_level: bool) -> str | None:
    """The characters that the vocabulary has nothing for; None: that may be any, or many may become one token."""
    if not isinstance(model, models.BPE):
        return None
    if is_byte_level:
        if any(CHARACTER_OF_BYTE[byte] not in vocabulary for byte in CONTINUATION_BYTES):
            return None
        return "".join(chr(byte) for byte in range(0x80) if CHARACTER_OF_BYTE[byte] not in vocabulary)
    falls_back = model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    return "" if falls_back else None
