"""Everything a pod can be told: flags of `tidegate serve`, each also an environment variable."""

import argparse
import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

from tidegate_server import setting_values as values
from tidegate_server.errors import InvalidSetting

ENVIRONMENT_PREFIX = "TIDEGATE_"

TERMINATION_MESSAGE_PATH = Path("/dev/termination-log")  # Kubernetes' default

MIN_MODEL_LEN = 2  # tokens: one to ask with, one to answer

CPU_ISAS = ("auto", "avx2", "avx512", "avx512bf16", "none")


class SchedulerKind(StrEnum):
    """How requests share steps."""

    CONTINUOUS = "continuous"  # they join and leave between any two steps
    STATIC = "static"  # in fixed groups, padded, each until all of it are done: to measure the difference


class PreemptionMode(StrEnum):
    """Which ways there are to preempt a request."""

    AUTO = "auto"  # the cheapest
    RECOMPUTE = "recompute"  # all its tokens are computed again
    SWAP = "swap"  # its blocks go to host memory; recompute where that has no room
    TAIL = "tail"  # it gives up its last blocks only


class PreemptionPolicy(StrEnum):
    """Who is preempted first, among those who go after the request that is in need."""

    CHEAPEST = "cheapest"  # whose preemption costs least
    NEWEST_FIRST = "newest-first"  # the last to arrive
    LONGEST_FIRST = "longest-first"  # the most tokens generated
    MOST_PREEMPTED_LAST = "most-preempted-last"  # the fewest preemptions, then the most tokens


class Fairness(StrEnum):
    """Between whom the engine is shared out."""

    NONE = "none"  # requests go by priority and arrival
    TENANT = "tenant"  # within a priority, the tenant that was given least is next


class Quantization(StrEnum):
    """In which numbers the CPU kernels keep weights; elsewhere all weights are de-quantised."""

    AUTO = "auto"  # as the checkpoint stores them
    INT8 = "int8"  # 8 bits, quantised while they are loaded
    NONE = "none"  # in the dtype


class ExactMode(StrEnum):
    """What the start does about rows whose bits depend on their batch."""

    AUTO = "auto"  # look, and say so
    REQUIRE = "require"  # look, and serve only if there are none
    OFF = "off"  # do not look


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the engine process needs; crosses to it pickled."""

    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: cuda when torch sees a device."""
    dtype: str = "auto"
    """`float32`, `bfloat16`, `float16`, or `auto`: the checkpoint's own, but on a CPU float32 for all but bfloat16."""
    quantization: Quantization = Quantization.AUTO
    """Numbers of the weights on a CPU: `auto`: as a GGUF file has them; `int8`; `none`: in the dtype."""
    cpu_isa: str = "auto"
    """Instruction set of the CPU kernels: one of `CPU_ISAS`; `auto`: the best of the processor; `none`: plain torch."""
    exact: ExactMode = ExactMode.AUTO
    """Whether the start tries if rows keep their bits in any batch, and whether they have to."""
    max_model_len: int | None = None
    """Tokens of prompt and output together; None: what the checkpoint was trained for."""
    max_num_seqs: int = 64
    """Most requests that hold blocks at once."""
    max_num_batched_tokens: int = 512
    """Most tokens that one step computes."""
    step_time_target: float = 2.0
    """Most that a prompt may lengthen a step, as a multiple of its time without them; 0: by any time."""
    block_size: int = 16
    """Tokens per KV block; a power of two."""
    kv_cache_memory_bytes: int | None = None
    """Memory for KV blocks; None: a share of what is free (GPU), or 1 GiB at most (CPU)."""
    num_kv_blocks: int | None = None
    """Number of KV blocks; given instead of the memory."""
    swap_memory_bytes: int | None = None
    """Host memory for KV blocks that left the device; 0: none. None: none on a CPU, where it is worth more as KV cache;
    beside a GPU 4 GiB, or a quarter of the free host memory if that is less."""
    scheduler: SchedulerKind = SchedulerKind.CONTINUOUS
    """`static` is a baseline to measure against: it has no prefix cache and preempts nobody."""
    prefix_caching: bool = True
    preemption_mode: PreemptionMode = PreemptionMode.AUTO
    """How a request is preempted: `auto`: the cheapest way."""
    preemption_policy: PreemptionPolicy = PreemptionPolicy.CHEAPEST
    """Who is preempted first."""
    max_queue_age_s: float = 60.0
    """A request that has waited so long goes before every priority."""
    fairness: Fairness = Fairness.NONE
    """Whether tenants get equal shares, however many requests each sends."""
    max_queued_requests: int | None = None
    """Most requests that wait; one more is refused. None: any number."""
    max_queued_tokens: int | None = None
    """Most tokens that waiting requests have to compute; None: any number. An empty queue takes any request."""
    seed: int = 0
    """Root of the seeds drawn for requests that bring none."""
    record_dir: str | None = None
    """Where recordings of the last steps go; None: nothing is recorded. They hold the token ids of prompts."""
    record_steps: int = 256
    """Steps that a recording holds, the last ones; at least 1."""

    @property
    def num_recorded_steps(self) -> int:
        return 0 if self.record_dir is None else self.record_steps

    @property
    def has_prefix_cache(self) -> bool:
        return self.prefix_caching and self.scheduler is SchedulerKind.CONTINUOUS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The whole of `tidegate serve`."""

    engine: EngineSettings
    model_uri: str = "builtin://smollm2-135m-instruct"
    served_model_name: str | None = None
    """The name clients ask for; None: the model's own."""
    host: str = "0.0.0.0"
    port: int = 8000
    ops_port: int = 9000
    queue_timeout_s: float | None = None
    """A request that was not begun so long after its arrival fails; None: it waits as long as its client does."""
    tenant_header: str | None = None
    """The header that says whose request it is; None: the key in `Authorization: Bearer`."""
    log_format: str = "text"
    """`text` or `json`."""
    log_level: str = "info"
    """`debug`, `info`, `warning` or `error`; one line a request at debug only."""
    drain_notice_s: float = 5.0
    """After SIGTERM, how long new requests are still taken while endpoints catch up."""
    drain_timeout_s: float = 300.0
    """After the notice, how long running requests may take to finish."""
    termination_message_path: Path = TERMINATION_MESSAGE_PATH
    """Where Kubernetes picks up why a container stopped; nothing is written when it does not exist."""

    @property
    def model_name(self) -> str:
        """The name clients ask for: known before the files are, because the first scrape of the metrics needs it."""
        return self.served_model_name or name_in_uri(self.model_uri)


def name_in_uri(uri: str) -> str:
    """A model's own name: that of its repository, folder or file, as it is written. Nothing is looked up."""
    scheme, separator, rest = uri.partition("://")
    if separator and scheme == "hf":
        return rest.partition("@")[0]
    if separator and scheme != "file":
        return rest
    path = Path(os.path.abspath(unquote(rest) if separator else uri))
    return path.stem if path.suffix == ".gguf" else path.name


@dataclass(frozen=True, slots=True)
class Option:
    """One flag with its environment variable."""

    flag: str
    field: str  # of EngineSettings or ServerSettings
    parse: values.Parse
    help: str
    metavar: str | None = None
    aliases: tuple[str, ...] = ()
    is_switch: bool = False  # takes no value on the command line; sets the field to False

    @property
    def variable(self) -> str:
        return variable_of(self.flag)


def variable_of(flag: str) -> str:
    """The environment variable that means the same as a flag."""
    return ENVIRONMENT_PREFIX + flag.removeprefix("--").replace("-", "_").upper()


_NUMBER = values.whole_number(1)
_LENGTH = values.whole_number(MIN_MODEL_LEN)
_PORT = values.whole_number(0, 65535)

MODEL = Option("--model", "model_uri", values.text, "what to serve: builtin://, hf://, file:// or a path", "URI")

OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "model": (
        MODEL,
        Option("--served-model-name", "served_model_name", values.text, "the name clients ask for", "NAME"),
        Option("--device", "device", values.one_of("auto", "cpu", "cuda"), "auto, cpu or cuda", "DEVICE"),
        Option(
            "--dtype",
            "dtype",
            values.one_of("auto", "float32", "bfloat16", "float16"),
            "auto, float32, bfloat16 or float16",
            "DTYPE",
        ),
        Option(
            "--quantization",
            "quantization",
            values.member_of(Quantization),
            "weights on a CPU: auto, as a GGUF file has them; int8; or none, in the dtype",
            "MODE",
        ),
        Option(
            "--cpu-isa",
            "cpu_isa",
            values.one_of(*CPU_ISAS),
            "instruction set of the CPU kernels; none: plain torch",
            "ISA",
        ),
        Option(
            "--exact",
            "exact",
            values.member_of(ExactMode),
            "try at start if a row's bits depend on its batch: auto says so, require then stops, off does not try",
            "MODE",
        ),
        Option("--max-model-len", "max_model_len", _LENGTH, "most tokens of prompt and output together", "TOKENS"),
        Option("--seed", "seed", values.whole_number(0, 2**63 - 1), "root of the seeds of requests without one", "N"),
    ),
    "scheduling": (
        Option(
            "--scheduler",
            "scheduler",
            values.member_of(SchedulerKind),
            "continuous batching, or static: padded groups, a baseline to measure against",
            "KIND",
        ),
        Option("--max-num-seqs", "max_num_seqs", _NUMBER, "most requests that run at once", "N"),
        Option("--max-num-batched-tokens", "max_num_batched_tokens", _NUMBER, "most tokens of one step", "TOKENS"),
        Option(
            "--step-time-target",
            "step_time_target",
            values.ratio,
            "most that a prompt may lengthen a step, as a multiple of its time without them; 0: by any time",
            "RATIO",
        ),
        Option("--block-size", "block_size", values.power_of_two(1, 1024), "tokens per KV block", "TOKENS"),
        Option(
            "--kv-cache-memory",
            "kv_cache_memory_bytes",
            values.size_bytes(1),
            "memory for the KV cache, such as 2GiB",
            "SIZE",
            aliases=("--kv-cache-memory-bytes",),
        ),
        Option("--num-kv-blocks", "num_kv_blocks", _NUMBER, "KV blocks, instead of the memory for them", "N"),
        Option(
            "--swap-memory",
            "swap_memory_bytes",
            values.size_bytes(0),
            "host memory for KV blocks that left the device, such as 4GiB; 0: none",
            "SIZE",
        ),
        Option(
            "--no-prefix-caching",
            "prefix_caching",
            values.yes_or_no,
            "compute every prompt anew",
            aliases=("--no-enable-prefix-caching",),
            is_switch=True,
        ),
        Option(
            "--preemption-mode",
            "preemption_mode",
            values.member_of(PreemptionMode),
            "how a request is preempted: auto (the cheapest way), recompute, swap or tail",
            "MODE",
        ),
        Option(
            "--preemption-policy",
            "preemption_policy",
            values.member_of(PreemptionPolicy),
            "who is preempted first: cheapest, newest-first, longest-first or most-preempted-last",
            "POLICY",
        ),
        Option(
            "--max-queue-age",
            "max_queue_age_s",
            values.seconds,
            "a request that has waited so long goes before every priority",
            "TIME",
        ),
        Option(
            "--fairness",
            "fairness",
            values.member_of(Fairness),
            "none: by priority and arrival; tenant: within a priority, whoever was given least is next",
            "MODE",
        ),
        Option("--max-queued-requests", "max_queued_requests", _NUMBER, "refuse requests when so many wait", "N"),
        Option(
            "--max-queued-tokens", "max_queued_tokens", _NUMBER, "refuse requests when so many tokens wait", "TOKENS"
        ),
    ),
    "recording": (
        Option(
            "--record-dir",
            "record_dir",
            values.text,
            "keep the last steps, and write them here after a fault or when asked; holds prompts' token ids",
            "PATH",
        ),
        Option("--record-steps", "record_steps", _NUMBER, "steps to keep", "N"),
    ),
    "server": (
        Option("--host", "host", values.text, "address to listen on", "ADDRESS"),
        Option("--port", "port", _PORT, "port of the API; 0: any free one", "PORT"),
        Option("--ops-port", "ops_port", _PORT, "port of probes, metrics, load and drain; 0: any free one", "PORT"),
        Option(
            "--queue-timeout",
            "queue_timeout_s",
            values.seconds_above_zero,
            "fail requests that were not begun after so long",
            "TIME",
        ),
        Option(
            "--tenant-header",
            "tenant_header",
            values.header_name,
            "header that says whose request it is; without: the key in Authorization: Bearer",
            "NAME",
        ),
        Option("--log-format", "log_format", values.one_of("text", "json"), "text or json", "FORMAT"),
        Option(
            "--log-level",
            "log_level",
            values.one_of("debug", "info", "warning", "error"),
            "debug, info, warning or error",
            "LEVEL",
        ),
        Option(
            "--drain-notice", "drain_notice_s", values.seconds, "after SIGTERM, still take requests so long", "TIME"
        ),
        Option("--drain-timeout", "drain_timeout_s", values.seconds, "after that, let requests finish so long", "TIME"),
        Option(
            "--termination-message-path",
            "termination_message_path",
            values.path,
            "where to leave the reason of a failed start, if the file exists",
            "PATH",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class _Given:
    """A value as somebody wrote it, and where."""

    name: str  # the flag or the variable
    raw: str


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[ServerSettings, tuple[str, ...]]:
    """Settings from the command line, which wins, and the environment; and warnings to log.

    Raises:
        InvalidSetting: names the flag or variable and says what is wrong with it.
        SystemExit: `--help` was asked for, and printed.
    """
    given = _given_in(environment) | _given_on(arguments)
    if "kv_cache_memory_bytes" in given and "num_kv_blocks" in given:
        memory, blocks = given["kv_cache_memory_bytes"], given["num_kv_blocks"]
        raise InvalidSetting(blocks.name, f"give either this or {memory.name}, not both")
    parsed = {option.field: _parsed(option, given[option.field]) for option in _options() if option.field in given}

    engine_fields = {field.name for field in fields(EngineSettings)}
    engine: dict[str, Any] = {name: value for name, value in parsed.items() if name in engine_fields}
    server: dict[str, Any] = {name: value for name, value in parsed.items() if name not in engine_fields}
    settings = ServerSettings(engine=EngineSettings(**engine), **server)
    if settings.port == settings.ops_port != 0:
        name = given["ops_port" if "ops_port" in given else "port"].name
        raise InvalidSetting(name, f"{settings.port} is both the API's port and the ops port; give one of them another")
    return settings, tuple(_unknown_variables(environment))


def as_given(error: InvalidSetting, arguments: Sequence[str], environment: Mapping[str, str]) -> InvalidSetting:
    """The same error, but named after what gave the value: a variable, or another name of the flag."""
    given = _given_in(environment) | _given_on(arguments)
    names = {option.flag: given[option.field].name for option in _options() if option.field in given}
    return InvalidSetting(names.get(error.flag, error.flag), error.problem)


def _options() -> Iterator[Option]:
    for group in OPTIONS.values():
        yield from group


def _parsed(option: Option, given: _Given) -> object:
    try:
        value = option.parse(given.raw)
    except ValueError as error:
        raise InvalidSetting(given.name, str(error)) from None
    return not value if option.is_switch else value


def _given_on(arguments: Sequence[str]) -> dict[str, _Given]:
    parser = _Parser(
        prog="tidegate serve",
        description="Serve one model with an OpenAI-compatible API.",
        epilog="Each flag is also an environment variable, which the flag overrides: "
        "--max-model-len is TIDEGATE_MAX_MODEL_LEN.",
        allow_abbrev=False,
    )
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help="the same as --model")
    for title, options in OPTIONS.items():
        group = parser.add_argument_group(title)
        for option in options:
            names = (option.flag, *option.aliases)
            if option.is_switch:
                group.add_argument(*names, dest=option.field, action=_Keep, nargs=0, help=option.help)
            else:
                text = f"{option.help}{_default_in_words(option)}"
                group.add_argument(*names, dest=option.field, action=_Keep, metavar=option.metavar, help=text)
    namespace, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise InvalidSetting(unknown[0].partition("=")[0], f"there is no such flag{_suggestion(unknown[0])}")
    given: dict[str, _Given] = {
        option.field: value for option in _options() if (value := getattr(namespace, option.field)) is not None
    }
    if namespace.model_argument is not None:
        if MODEL.field in given:
            raise InvalidSetting(MODEL.flag, "the model is given twice; give it with the flag or without, not both")
        given[MODEL.field] = _Given(MODEL.flag, namespace.model_argument)
    return given


def _default_in_words(option: Option) -> str:
    for kind in (EngineSettings, ServerSettings):
        for field in fields(kind):
            if field.name == option.field and field.default is not None:
                default = field.default.value if isinstance(field.default, Enum) else field.default
                return f" (default: {default})"
    return ""


class _Keep(argparse.Action):
    """Keeps a value together with the flag as it was typed: an alias is named by its own name."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        assert option_string is not None
        setattr(namespace, self.dest, _Given(option_string, values if isinstance(values, str) else "true"))


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        if match := re.fullmatch(r"argument ([^:]+): (.*)", message):
            raise InvalidSetting(match[1], match[2])
        raise InvalidSetting("tidegate serve", message)


def _suggestion(flag: str) -> str:
    known = [name for option in _options() for name in (option.flag, *option.aliases)]
    close = difflib.get_close_matches(flag.partition("=")[0], known, n=1)
    return f"; did you mean {close[0]}?" if close else "; see tidegate serve --help"


def _given_in(environment: Mapping[str, str]) -> dict[str, _Given]:
    return {
        option.field: _Given(option.variable, raw)
        for option in _options()
        if (raw := environment.get(option.variable, "")) and not _is_service_link(option.variable, raw)
    }


# Kubernetes tells every container about each Service of its namespace; a Service called `tidegate` gives these names.
_SERVICE_LINK_NAME = re.compile(r"TIDEGATE_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_.+)?)")


def _is_service_link(name: str, value: str) -> bool:
    return bool(_SERVICE_LINK_NAME.fullmatch(name)) or (
        name.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", value) is not None
    )


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    known = {option.variable for option in _options()}
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in known or _is_service_link(name, environment[name]):
            continue
        close = difflib.get_close_matches(name, known, n=1)
        yield f"{name} is not a setting and is ignored" + (f"; did you mean {close[0]}?" if close else "")
