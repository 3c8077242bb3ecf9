"""Everything `tidegate bench` can be told: its own flags, and those of the engine, which are the ones of `serve`."""

import argparse
import difflib
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from tidegate_server import setting_values as values
from tidegate_server.bench.workloads import LengthRange, WorkloadKind, WorkloadOptions
from tidegate_server.errors import InvalidSetting
from tidegate_server.settings import MODEL, EngineSettings, Option, ServerSettings, read_settings, variable_of
from tidegate_server.settings import OPTIONS as SERVE_OPTIONS

LOG_LEVEL = "--log-level"
# Ids below it are in the vocabulary of nearly every model: the smallest common one is Llama 2's.
SAFE_VOCAB_SIZE = 32_000
OVERLOAD_KV_SEQUENCES = 8


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Measure our engine, started here."""

    settings: ServerSettings
    warnings: tuple[str, ...]  # of the settings, to log
    kv_sequences: int | None  # KV blocks for so many of the longest requests; None: as the settings say


@dataclass(frozen=True, slots=True)
class EndpointChoice:
    """Measure what answers at a URL."""

    url: str  # with /v1
    model: str
    api_key: str | None
    metrics_url: str | None
    vocab_size: int


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The whole of `tidegate bench`."""

    target: EngineChoice | EndpointChoice
    workload: WorkloadOptions
    trace: Path | None
    ignore_eos: bool
    json: Path | None
    plot: Path | None


def _length(raw: str) -> LengthRange:
    match = re.fullmatch(r"(\d+)(?::(\d+))?", raw.strip())
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most <= values.MAX_COUNT:
        raise ValueError(f"{raw!r} is neither a length in tokens, such as 128, nor a range of them, such as 32:256")
    return LengthRange(least, most)


def _positive(raw: str) -> float:
    try:
        value = float(raw)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{raw!r} is not a number above 0")
    return value


def _duration(raw: str) -> float:
    seconds = values.seconds(raw)
    if seconds <= 0:
        raise ValueError(f"{raw!r} is no time at all")
    return seconds


def _url(raw: str) -> str:
    parts = urlsplit(raw)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{raw!r} is not a URL, such as http://127.0.0.1:8000/v1")
    _ = parts.port  # raises ValueError for one that is none
    return raw


_NUMBER = values.whole_number(1)

OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "what to measure: our engine, started here, or with --url an OpenAI-compatible endpoint": (
        Option(
            MODEL.flag, "model", values.text, "our engine's model, as for serve; with --url the name to ask for", "URI"
        ),
        Option("--url", "url", _url, "the endpoint, such as http://127.0.0.1:8000/v1", "URL"),
        Option("--api-key-env", "api_key_env", values.text, "environment variable that holds its API key", "NAME"),
        Option("--metrics-url", "metrics_url", _url, "its /metrics, for the engine's numbers (ours or vLLM's)", "URL"),
        Option(
            "--vocab-size",
            "vocab_size",
            values.whole_number(2),
            f"its prompts are token ids below it (default: {SAFE_VOCAB_SIZE})",
            "N",
        ),
        Option(
            "--no-ignore-eos", "ignore_eos", values.yes_or_no, "let the model end its outputs early", is_switch=True
        ),
    ),
    "workload": (
        Option(
            "--workload", "kind", values.member_of(WorkloadKind), f"{', '.join(WorkloadKind)} (default: range)", "KIND"
        ),
        Option("--num-requests", "num_requests", _NUMBER, "how many (default: 64; of a trace: all)", "N"),
        Option("--input-len", "prompt_tokens", _length, "prompt tokens: a number, or LEAST:MOST", "TOKENS"),
        Option("--output-len", "output_tokens", _length, "output tokens, likewise", "TOKENS"),
        Option("--num-prefixes", "num_prefixes", _NUMBER, "shared-prefix: how many there are (default: 4)", "N"),
        Option("--prefix-len", "prefix_tokens", _NUMBER, "shared-prefix: length of each (default: 512)", "TOKENS"),
        Option("--trace", "trace", values.path, "trace: a CSV of Azure's kind or JSON lines of Mooncake's", "FILE"),
        Option("--speed-up", "speed_up", _positive, "trace: its time runs so many times as fast", "FACTOR"),
        Option("--max-input-len", "max_prompt_tokens", _NUMBER, "trace: cut longer prompts", "TOKENS"),
        Option("--max-output-len", "max_output_tokens", _NUMBER, "trace: cut longer outputs", "TOKENS"),
        Option(
            "--kv-sequences",
            "kv_sequences",
            _NUMBER,
            f"our engine: KV blocks for so many of the longest requests (overload: {OVERLOAD_KV_SEQUENCES})",
            "N",
        ),
        Option("--rate", "rate_per_s", _positive, "requests a second, Poisson (default: all at once)", "R"),
        Option("--duration", "duration_s", _duration, "stop after so long", "TIME"),
        Option(
            "--seed", "seed", values.whole_number(0, 2**63 - 1), "of lengths, arrivals and tokens (default: 0)", "N"
        ),
    ),
    "result": (
        Option("--json", "json", values.path, "write all numbers there", "FILE"),
        Option("--plot", "plot", values.path, "draw the engine's timeline there (needs matplotlib)", "FILE"),
    ),
}

_DEFAULT_LENGTHS: Mapping[WorkloadKind, tuple[LengthRange, LengthRange]] = {
    WorkloadKind.FIXED: (LengthRange(256, 256), LengthRange(128, 128)),
    WorkloadKind.RANGE: (LengthRange(32, 256), LengthRange(16, 128)),
    WorkloadKind.SHARED_PREFIX: (LengthRange(32, 32), LengthRange(32, 32)),
    WorkloadKind.TRACE: (LengthRange(1, 1), LengthRange(1, 1)),  # not read
    WorkloadKind.OVERLOAD: (LengthRange(64, 256), LengthRange(128, 256)),
}
DEFAULT_NUM_REQUESTS = 64

# Which flags only some workloads have, by the field they set.
_ONLY_FOR: Mapping[str, frozenset[WorkloadKind]] = {
    "prompt_tokens": frozenset(WorkloadKind) - {WorkloadKind.TRACE},
    "output_tokens": frozenset(WorkloadKind) - {WorkloadKind.TRACE},
    "num_prefixes": frozenset({WorkloadKind.SHARED_PREFIX}),
    "prefix_tokens": frozenset({WorkloadKind.SHARED_PREFIX}),
    "trace": frozenset({WorkloadKind.TRACE}),
    "speed_up": frozenset({WorkloadKind.TRACE}),
    "max_prompt_tokens": frozenset({WorkloadKind.TRACE}),
    "max_output_tokens": frozenset({WorkloadKind.TRACE}),
}
_ONLY_WITH_URL = ("api_key_env", "metrics_url", "vocab_size")

_ENGINE_FIELDS = {field.name for field in fields(EngineSettings)}
# Of the flags of `serve` those that an engine without a server has.
_PASSED_ON = tuple(
    option
    for group in SERVE_OPTIONS.values()
    for option in group
    if option.field in _ENGINE_FIELDS - {"seed"} or option.field in ("log_format", "log_level")
)


def read_options(arguments: Sequence[str], environment: Mapping[str, str]) -> BenchOptions:
    """Options from the command line; the engine's also from the environment, as for `tidegate serve`.

    Raises:
        InvalidSetting: names the flag and says what is wrong with it.
        SystemExit: `--help` was asked for, and printed.
    """
    given, passed_on = _given_on(arguments)
    workload = _workload(given)
    return BenchOptions(
        target=_endpoint(given, passed_on, environment)
        if "url" in given
        else _engine(given, passed_on, workload.kind, environment),
        workload=workload,
        trace=given.get("trace"),
        ignore_eos=given.get("ignore_eos", True),
        json=_checked_output("--json", given.get("json")),
        plot=_checked_output("--plot", given.get("plot")),
    )


def _workload(given: Mapping[str, Any]) -> WorkloadOptions:
    kind = given.get("kind", WorkloadKind.TRACE if "trace" in given else WorkloadKind.RANGE)
    for field, kinds in _ONLY_FOR.items():
        if field in given and kind not in kinds:
            raise InvalidSetting(_flag_of(field), f"--workload {kind} does without it")
    if kind is WorkloadKind.TRACE and "trace" not in given:
        raise InvalidSetting("--workload", "trace needs a file; name it with --trace")
    if "speed_up" in given and "rate_per_s" in given:
        raise InvalidSetting("--speed-up", "with --rate the recorded times are not used; give one of them")
    prompt, output = _DEFAULT_LENGTHS[kind]
    lengths: dict[str, Any] = {"prompt_tokens": prompt, "output_tokens": output} | _some(
        given, "prompt_tokens", "output_tokens"
    )
    if kind is WorkloadKind.FIXED:
        for field, length in lengths.items():
            if length.least != length.most:
                raise InvalidSetting(_flag_of(field), "a fixed length is one number; --workload range draws from two")
    ends_by_itself = kind is WorkloadKind.TRACE or ("rate_per_s" in given and "duration_s" in given)
    return WorkloadOptions(
        kind=kind,
        num_requests=given.get("num_requests", None if ends_by_itself else DEFAULT_NUM_REQUESTS),
        **lengths,
        **_some(
            given, "num_prefixes", "prefix_tokens", "rate_per_s", "speed_up", "max_prompt_tokens",
            "max_output_tokens", "duration_s", "seed",
        ),
    )  # fmt: skip


def _endpoint(given: Mapping[str, Any], passed_on: Sequence[str], environment: Mapping[str, str]) -> EndpointChoice:
    if passed_on:
        raise InvalidSetting(_name_of(passed_on[0]), "a flag of our engine, but --url measures one that runs already")
    if "kv_sequences" in given:
        raise InvalidSetting("--kv-sequences", "our engine only; --url measures one that runs already")
    if "model" not in given:
        raise InvalidSetting("--model", "with --url, give the name that the endpoint serves the model under")
    if "plot" in given and "metrics_url" not in given:
        raise InvalidSetting("--plot", "it shows the engine's numbers; say with --metrics-url where they are")
    variable = given.get("api_key_env")
    if variable is not None and not environment.get(variable):
        raise InvalidSetting("--api-key-env", f"{variable} is not set, or empty")
    return EndpointChoice(
        url=given["url"],
        model=given["model"],
        api_key=None if variable is None else environment[variable],
        metrics_url=given.get("metrics_url"),
        vocab_size=given.get("vocab_size", SAFE_VOCAB_SIZE),
    )


def _engine(
    given: Mapping[str, Any], passed_on: Sequence[str], kind: WorkloadKind, environment: Mapping[str, str]
) -> EngineChoice:
    for field in _ONLY_WITH_URL:
        if field in given:
            raise InvalidSetting(_flag_of(field), "an endpoint has it; say with --url which one")
    # Between a bar and a table the engine speaks up only for what is wrong.
    arguments = [] if variable_of(LOG_LEVEL) in environment else [f"{LOG_LEVEL}=warning"]
    arguments += passed_on
    arguments += [f"{MODEL.flag}={given['model']}"] if "model" in given else []
    arguments += [f"--seed={given['seed']}"] if "seed" in given else []
    settings, warnings = read_settings(arguments, environment)
    sized = settings.engine.num_kv_blocks is not None or settings.engine.kv_cache_memory_bytes is not None
    if sized and "kv_sequences" in given:
        raise InvalidSetting("--kv-sequences", "the KV cache has its size from another flag or variable; give one")
    default = OVERLOAD_KV_SEQUENCES if kind is WorkloadKind.OVERLOAD and not sized else None
    return EngineChoice(settings, warnings, given.get("kv_sequences", default))


def with_kv_sequences(settings: EngineSettings, num_sequences: int, longest_tokens: int) -> EngineSettings:
    """Settings with the KV blocks for so many requests of the given length, prompt and output together."""
    blocks_each = math.ceil(longest_tokens / settings.block_size)
    return replace(settings, num_kv_blocks=num_sequences * blocks_each)


def _given_on(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Parsed values by field, and the arguments for the engine as they were given."""
    parser = _parser()
    namespace, passed_on = parser.parse_known_args(arguments)
    for argument in passed_on:
        _check_passed_on(argument)
    given: dict[str, Any] = {}
    for option in _options():
        raw = getattr(namespace, option.field)
        if raw is None:
            continue
        try:
            value = option.parse(raw)
        except ValueError as error:
            raise InvalidSetting(option.flag, str(error)) from None
        given[option.field] = not value if option.is_switch else value
    return given, passed_on


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tidegate bench",
        description="Send a workload to our engine or to an OpenAI-compatible endpoint, and tell what came of it.",
        epilog=textwrap.fill(
            "Our engine takes the same flags and environment variables as with serve: "
            f"{', '.join(option.flag for option in _PASSED_ON)}; see tidegate serve --help.",
            break_on_hyphens=False,  # a flag in two pieces cannot be copied
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for title, options in OPTIONS.items():
        group = parser.add_argument_group(title)
        for option in options:
            if option.is_switch:
                group.add_argument(option.flag, dest=option.field, action="store_const", const="true", help=option.help)
            else:
                group.add_argument(option.flag, dest=option.field, metavar=option.metavar, help=option.help)
    return parser


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        if match := re.fullmatch(r"argument ([^:]+): (.*)", message):
            raise InvalidSetting(match[1], match[2])
        raise InvalidSetting("tidegate bench", message)


def _check_passed_on(argument: str) -> None:
    """A flag that is neither ours nor the engine's is a mistake; values of the engine's flags are its own to check."""
    known = [name for option in _PASSED_ON for name in (option.flag, *option.aliases)]
    name = _name_of(argument)
    if not name.startswith("--") or name in known:
        return
    close = difflib.get_close_matches(name, [*known, *(option.flag for option in _options())], n=1)
    hint = f"did you mean {close[0]}?" if close else "see tidegate bench --help"
    raise InvalidSetting(name, f"there is no such flag; {hint}")


def _checked_output(flag: str, path: Path | None) -> Path | None:
    """Before a long run, that its result will have a place."""
    if path is not None and not path.absolute().parent.is_dir():
        raise InvalidSetting(flag, f"{path.absolute().parent} is no folder")
    return path


def _options() -> Iterator[Option]:
    for group in OPTIONS.values():
        yield from group


def _flag_of(field: str) -> str:
    return next(option.flag for option in _options() if option.field == field)


def _name_of(argument: str) -> str:
    return argument.partition("=")[0]


def _some(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}
