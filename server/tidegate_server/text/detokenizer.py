"""Token ids to text as they come: never half a character, and no token is decoded over and over."""

import codecs
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

REPLACEMENT = "\ufffd"

# A character has at most four bytes, so at most four tokens; a tail that stays broken for longer is broken for good.
MAX_HELD_TOKENS = 4


class Detokenizer(Protocol):
    """Joined, what `push` and then `finish` return is the text of all tokens."""

    def push(self, token_id: int) -> str:
        """The characters that this token completes; perhaps none."""
        ...

    def finish(self) -> str:
        """What is still held back when no more tokens come."""
        ...


class ByteLevelDetokenizer:
    """For tokenizers whose tokens are bytes: exact, and the same work for each token."""

    def __init__(self, token_bytes: Callable[[int], bytes], special_ids: AbstractSet[int]) -> None:
        self._token_bytes = token_bytes
        self._special_ids = special_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        if token_id in self._special_ids:
            return ""
        return self._decoder.decode(self._token_bytes(token_id))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowedDetokenizer:
    """For all other tokenizers: decodes the last few tokens with and without the new one, and gives the difference.

    The tokens before the new one are there because a token's text can depend on them: SentencePiece drops the space
    that a text starts with.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        special_ids: AbstractSet[int],
        prompt_tail: Sequence[int],
    ) -> None:
        self._decode = decode
        self._special_ids = special_ids
        self._context = list(prompt_tail)  # decoded, its text given out
        self._held: list[int] = []  # its text not given out yet

    def push(self, token_id: int) -> str:
        if token_id in self._special_ids:
            return ""
        self._held.append(token_id)
        text = self._held_text()
        if text.endswith(REPLACEMENT) and len(self._held) < MAX_HELD_TOKENS:
            return ""
        self._release()
        return text

    def finish(self) -> str:
        text = self._held_text()
        self._release()
        return text

    def _held_text(self) -> str:
        return self._decode([*self._context, *self._held])[len(self._decode(self._context)) :]

    def _release(self) -> None:
        if self._held:
            self._context, self._held = self._held, []
