"""Stop strings: finds the first one in a text that comes in pieces, and holds back only what could begin one."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passed:
    """What one piece of text let through."""

    text: str
    stop: str | None = None  # the stop string that ended the text; it is not in `text`


class StopStrings:
    """Looks for several stop strings at once.

    The string whose end comes first wins, and of two that end together the longer one: that is what reading character
    by character gives, so the result does not depend on how the text was cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._held = ""

    def push(self, piece: str) -> Passed:
        """Take the next piece; after a stop was found nothing more may be pushed."""
        if not self._stops:
            return Passed(piece)
        text = self._held + piece
        if (found := self._first_in(text)) is not None:
            start, stop = found
            self._held = ""
            return Passed(text[:start], stop)
        cut = len(text) - self._length_that_may_begin_a_stop(text)
        self._held = text[cut:]
        return Passed(text[:cut])

    def finish(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held

    def _first_in(self, text: str) -> tuple[int, str] | None:
        matches = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not matches:
            return None
        _, start, stop = min(matches)
        return start, stop

    def _length_that_may_begin_a_stop(self, text: str) -> int:
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(len(stop) > length and text.endswith(stop[:length]) for stop in self._stops):
                return length
        return 0
