"""A request's sampling fields, checked, as the engine's `SamplingParams`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate_server.api.schema import ChatCompletionRequest, CompletionRequest, GenerationRequest
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.errors import InvalidRequest

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for completions; a chat may use what is left of the context
MAX_CHOICES = 128  # `n` times the number of prompts
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024  # characters
MAX_STOP_TOKEN_IDS = 1024  # each choice brings them to the engine, where each step under `min_tokens` forbids them
LARGEST_TEMPERATURE = 3.4028234663852886e38  # of fp32, which logits are divided in; far below it all are alike
SEED_RANGE = range(-(2**63), 2**63)
MAX_PRIORITY = 2**31 - 1  # of either sign


@dataclass(frozen=True, slots=True)
class Limits:
    """What fits into this server."""

    max_model_len: int  # tokens of prompt and output together
    kv_tokens: int  # tokens that all KV blocks hold
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()

    @property
    def max_tokens(self) -> int:
        """Most tokens of prompt and output that one request can have."""
        return min(self.max_model_len, self.kv_tokens)


@dataclass(frozen=True, slots=True)
class Wanted:
    """How one API request wants its text made: the same for all its prompts and choices."""

    max_tokens: int | None  # None: what fits
    num_choices: int  # per prompt
    stop: tuple[str, ...]
    temperature: float
    top_p: float
    top_k: int | None
    seed: int | None
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    min_tokens: int
    logprobs: int | None
    priority: int
    cache_salt: str

    def params(self, num_prompt_tokens: int, choice: int, limits: Limits) -> SamplingParams:
        """The parameters of one choice of one prompt; its length is cut to what fits."""
        room = limits.max_tokens - num_prompt_tokens
        max_tokens = room if self.max_tokens is None else min(self.max_tokens, room)
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            choice=choice,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            min_tokens=min(self.min_tokens, max_tokens),
            logprobs=self.logprobs,
        )


def wanted_by_completion(request: CompletionRequest, num_prompts: int, limits: Limits) -> Wanted:
    """Check a completion's fields.

    Raises:
        InvalidRequest: a value out of range; `param` names the field.
    """
    if request.logprobs is not None:
        _between("logprobs", request.logprobs, 0, MAX_LOGPROBS)
    max_tokens = DEFAULT_COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    return _wanted(request, max_tokens, "max_tokens", request.logprobs, num_prompts, limits)


def wanted_by_chat(request: ChatCompletionRequest, limits: Limits) -> Wanted:
    """Check a chat completion's fields; `max_completion_tokens` is the newer name of `max_tokens` and wins.

    Raises:
        InvalidRequest: a value out of range; `param` names the field.
    """
    num_top = _or(request.top_logprobs, 0)
    _between("top_logprobs", num_top, 0, MAX_LOGPROBS)
    if num_top > 0 and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs", code="invalid_value")
    logprobs = num_top if request.logprobs else None
    if request.max_completion_tokens is not None:
        return _wanted(request, request.max_completion_tokens, "max_completion_tokens", logprobs, 1, limits)
    return _wanted(request, request.max_tokens, "max_tokens", logprobs, 1, limits)


def _wanted(
    request: GenerationRequest,
    max_tokens: int | None,
    max_tokens_field: str,
    logprobs: int | None,
    num_prompts: int,
    limits: Limits,
) -> Wanted:
    num_choices = _or(request.n, 1)
    min_tokens = _or(request.min_tokens, 0)
    if max_tokens is not None:
        _at_least(max_tokens_field, max_tokens, 1)
    _at_least("n", num_choices, 1)
    if num_choices * num_prompts > MAX_CHOICES:
        raise _out_of_range("n", f"{num_choices} choices of {num_prompts} prompts are more than {MAX_CHOICES} in all")
    _between("priority", _or(request.priority, 0), -MAX_PRIORITY, MAX_PRIORITY)
    _at_least("min_tokens", min_tokens, 0)
    if max_tokens is not None and min_tokens > max_tokens:
        raise _out_of_range("min_tokens", f"{min_tokens} is more than {max_tokens_field}, which is {max_tokens}")
    stop_token_ids = _token_ids(request.stop_token_ids or (), limits.vocab_size)
    if min_tokens > 0:
        _check_something_is_left(stop_token_ids, bool(request.ignore_eos), limits)
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest(
            "stream_options is only allowed when stream is true", param="stream_options", code="invalid_value"
        )
    return Wanted(
        max_tokens=max_tokens,
        num_choices=num_choices,
        stop=_stop_strings(request.stop),
        temperature=_temperature(request.temperature),
        top_p=_top_p(request.top_p),
        top_k=_top_k(request.top_k, limits.vocab_size),
        seed=_seed(request.seed),
        stop_token_ids=stop_token_ids,
        ignore_eos=bool(request.ignore_eos),
        min_tokens=min_tokens,
        logprobs=logprobs,
        priority=_or(request.priority, 0),
        cache_salt=request.cache_salt or "",
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _temperature(value: float | None) -> float:
    if value is None:
        return 1.0
    if not (math.isfinite(value) and value >= 0):
        raise _out_of_range("temperature", f"{value} is not a number of at least 0")
    return min(value, LARGEST_TEMPERATURE)


def _top_p(value: float | None) -> float:
    if value is None:
        return 1.0
    if not 0 < value <= 1:
        raise _out_of_range("top_p", f"{value} is not above 0 and at most 1")
    return value


def _top_k(value: int | None, vocab_size: int) -> int | None:
    if value is None or value in (-1, 0):
        return None
    if value < -1:
        raise _out_of_range("top_k", f"{value} is neither a number of tokens nor -1, which means all")
    return min(value, vocab_size)


def _seed(value: int | None) -> int | None:
    if value is not None and value not in SEED_RANGE:
        raise _out_of_range("seed", f"{value} does not fit into 64 bits")
    return value


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOP_STRINGS:
        raise _out_of_range("stop", f"{len(stops)} stop strings are more than {MAX_STOP_STRINGS}")
    for index, text in enumerate(stops):
        field = "stop" if isinstance(stop, str) else f"stop[{index}]"
        if not text:
            raise _out_of_range(field, "a stop string may not be empty")
        if len(text) > MAX_STOP_LENGTH:
            raise _out_of_range(field, f"{len(text)} characters are more than {MAX_STOP_LENGTH}")
    return stops


def _token_ids(token_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    for index, token_id in enumerate(token_ids):
        _between(f"stop_token_ids[{index}]", token_id, 0, vocab_size - 1)
    different = tuple(dict.fromkeys(token_ids))
    if len(different) > MAX_STOP_TOKEN_IDS:
        raise _out_of_range("stop_token_ids", f"{len(different)} tokens are more than {MAX_STOP_TOKEN_IDS}")
    return different


def _check_something_is_left(stop_token_ids: Sequence[int], ignore_eos: bool, limits: Limits) -> None:
    """Refuse a request that no token could be drawn for before its `min_tokens`."""
    ends = {*stop_token_ids, *(() if ignore_eos else limits.eos_token_ids)}
    if ends.issuperset(range(limits.vocab_size)):
        raise _out_of_range(
            "min_tokens",
            "nothing is left to draw, since stop_token_ids and the end tokens are the whole vocabulary: "
            "leave min_tokens out, or give fewer stop_token_ids",
        )


def _at_least(field: str, value: int, least: int) -> None:
    if value < least:
        raise _out_of_range(field, f"{value} is less than {least}")


def _between(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise _out_of_range(field, f"{value} is not between {least} and {most}")


def _out_of_range(field: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {problem}", param=field, code="invalid_value")
