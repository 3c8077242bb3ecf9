"""One choice of a reply: what the engine gives step by step, as text cut at stop strings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tidegate_server.engine.messages import FinishReason, RequestOutput
from tidegate_server.errors import EngineError, Overloaded, RequestError
from tidegate_server.text.detokenizer import Detokenizer
from tidegate_server.text.stop import StopStrings

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class TokenDetail:
    """One token with its log-probabilities, for requests that ask for them."""

    token_id: int
    text_offset: int  # characters of the choice's text before this token
    logprob: float  # natural logarithm
    top: tuple[tuple[int, float], ...]  # (token id, log-probability), most probable first


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new in one choice."""

    choice: int  # its index in the reply
    text: str
    num_tokens: int
    details: tuple[TokenDetail, ...]
    finish: Finish | None
    num_cached_tokens: int


class ChoiceText:
    """Turns the outputs of one engine request into text; a pure fold without I/O."""

    def __init__(self, choice: int, detokenizer: Detokenizer, stop: Sequence[str], min_tokens: int) -> None:
        self._choice = choice
        self._detokenizer = detokenizer
        self._stop = StopStrings(stop)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._num_characters = 0  # detokenized so far, held back or not

    def take(self, output: RequestOutput) -> Delta:
        """Fold in one output. After a delta with a finish reason, no more may come.

        Raises:
            EngineError: the engine failed this request.
            Overloaded: the server stopped before the request was finished.
        """
        if (failure := _failure(output)) is not None:
            raise failure
        ended_by_token = output.finish_reason is FinishReason.STOP
        details: list[TokenDetail] = []
        pieces: list[str] = []
        finish: Finish | None = None
        num_taken = 0
        for index, token_id in enumerate(output.token_ids):
            if index < len(output.logprobs):
                top = output.top_logprobs[index] if index < len(output.top_logprobs) else ()
                details.append(TokenDetail(token_id, self._num_characters, output.logprobs[index], top))
            num_taken += 1
            if ended_by_token and index == len(output.token_ids) - 1:
                break  # the end token itself is no text
            piece, stopped = self._next_text(self._detokenizer.push(token_id))
            pieces.append(piece)
            if stopped:
                finish = "stop"
                break
        if finish is None and output.finish_reason is not None:
            piece, stopped = self._rest()
            pieces.append(piece)
            finish = "stop" if stopped or ended_by_token else "length"
        return Delta(
            choice=self._choice,
            text="".join(pieces),
            num_tokens=num_taken,
            details=tuple(details),
            finish=finish,
            num_cached_tokens=output.num_cached_tokens,
        )

    def _next_text(self, text: str) -> tuple[str, bool]:
        """The part of a token's text that may be sent, and whether a stop string ended it."""
        self._num_tokens += 1
        self._num_characters += len(text)
        if self._num_tokens <= self._min_tokens:
            return text, False  # stop strings do not count before `min_tokens`
        passed = self._stop.push(text)
        return passed.text, passed.stop is not None

    def _rest(self) -> tuple[str, bool]:
        passed = self._stop.push(self._detokenizer.finish())
        if passed.stop is not None:
            return passed.text, True
        return passed.text + self._stop.finish(), False


def _failure(output: RequestOutput) -> RequestError | None:
    match output.finish_reason:
        case FinishReason.ERROR:
            return EngineError(output.error or "the engine failed this request", code="engine_error")
        case FinishReason.ABORT:
            return Overloaded("the server stopped before this request was finished; send it again", code="aborted")
        case _:
            return None
