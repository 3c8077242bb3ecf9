"""Flags and environment variables of `tidegate serve`."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from tidegate_server.errors import InvalidSetting
from tidegate_server.model_source import resolve_model
from tidegate_server.settings import (
    OPTIONS,
    EngineSettings,
    Option,
    ServerSettings,
    as_given,
    name_in_uri,
    read_settings,
)

ALL_OPTIONS: list[Option] = [option for group in OPTIONS.values() for option in group]

# A good value and a bad one for each flag.
VALUES: dict[str, tuple[str, str]] = {
    "--model": ("file:///models/m", " "),
    "--served-model-name": ("mine", " "),
    "--device": ("cpu", "tpu"),
    "--dtype": ("bfloat16", "bf16"),
    "--quantization": ("int8", "fp8"),
    "--cpu-isa": ("avx2", "sse"),
    "--exact": ("require", "perhaps"),
    "--max-model-len": ("2048", "1"),
    "--seed": ("7", "-1"),
    "--scheduler": ("static", "dynamic"),
    "--max-num-seqs": ("8", "many"),
    "--max-num-batched-tokens": ("128", "1.5"),
    "--step-time-target": ("1.5", "0.5"),
    "--block-size": ("32", "24"),
    "--kv-cache-memory": ("2GiB", "2 gibibytes"),
    "--num-kv-blocks": ("100", "-5"),
    "--swap-memory": ("4GiB", "a lot"),
    "--no-prefix-caching": ("true", "perhaps"),
    "--preemption-mode": ("tail", "half"),
    "--preemption-policy": ("newest-first", "oldest-first"),
    "--max-queue-age": ("90s", "soon"),
    "--fairness": ("tenant", "fair"),
    "--max-queued-requests": ("100", "0"),
    "--max-queued-tokens": ("50000", "1e5"),
    "--record-dir": ("/records", " "),
    "--record-steps": ("64", "0"),
    "--host": ("127.0.0.1", " "),
    "--port": ("8080", "65536"),
    "--ops-port": ("9090", "ops"),
    "--queue-timeout": ("30s", "0s"),
    "--tenant-header": ("X-Team", "a header"),
    "--log-format": ("json", "xml"),
    "--log-level": ("debug", "loud"),
    "--drain-notice": ("1.5s", "soon"),
    "--drain-timeout": ("2m", "-1"),
    "--termination-message-path": ("/tmp/why", " "),
}


def value_of(settings: ServerSettings, field: str) -> object:
    return getattr(settings.engine if field in {f.name for f in fields(EngineSettings)} else settings, field)


def read(*arguments: str, **environment: str) -> ServerSettings:
    return read_settings(arguments, environment)[0]


def test_the_table_of_values_covers_every_flag() -> None:
    assert set(VALUES) == {option.flag for option in ALL_OPTIONS}


def test_every_setting_has_a_flag() -> None:
    settings = {field.name for kind in (EngineSettings, ServerSettings) for field in fields(kind)}
    assert {option.field for option in ALL_OPTIONS} == settings - {"engine"}


def test_nothing_given_means_the_defaults() -> None:
    assert read() == ServerSettings(engine=EngineSettings())


@pytest.mark.parametrize("option", ALL_OPTIONS, ids=lambda option: option.flag)
def test_a_flag_and_its_variable_mean_the_same_and_the_flag_wins(option: Option) -> None:
    good, bad = VALUES[option.flag]
    on_command_line = [option.flag] if option.is_switch else [option.flag, good]
    by_flag = read(*on_command_line)
    assert by_flag == read(**{option.variable: good})
    assert by_flag == read(*on_command_line, **{option.variable: bad})
    assert option.variable == "TIDEGATE_" + option.flag[2:].replace("-", "_").upper()


@pytest.mark.parametrize("option", ALL_OPTIONS, ids=lambda option: option.flag)
def test_a_wrong_value_is_one_line_that_names_its_source(option: Option) -> None:
    _, bad = VALUES[option.flag]
    with pytest.raises(InvalidSetting) as refused:
        read(**{option.variable: bad})
    assert str(refused.value).startswith(f"{option.variable}: ")
    if not option.is_switch:
        with pytest.raises(InvalidSetting) as refused:
            read(f"{option.flag}={bad}")
        assert re.fullmatch(rf"{option.flag}: .+", str(refused.value))


EXTREMES = ("", " ", "-1", "0", "nan", "inf", "1e400", "9" * 400, "9" * 5000, "9" * 400 + "GiB", "x\ny", "a..b", "\0")


@pytest.mark.parametrize("option", ALL_OPTIONS, ids=lambda option: option.flag)
@pytest.mark.parametrize("raw", EXTREMES, ids=lambda raw: repr(raw[:12]))
def test_whatever_is_written_is_taken_or_refused_in_one_line(option: Option, raw: str) -> None:
    names = [option.flag, *option.aliases]
    for source, arguments, environment in [
        *((name, [f"{name}={raw}"], {}) for name in names),
        (option.variable, [], {option.variable: raw}),
    ]:
        try:
            read(*arguments, **environment).model_name  # noqa: B018 - the first to look at the model's path
        except InvalidSetting as refused:
            message = str(refused)
            assert source in message.partition(": ")[0]
            assert "\n" not in message


def test_values_have_their_types_and_units() -> None:
    settings = read(
        "--kv-cache-memory=1.5GiB", "--drain-notice=500ms", "--drain-timeout", "2m", "--no-prefix-caching", "--seed=9"
    )
    assert settings.engine.kv_cache_memory_bytes == 3 * 2**29
    assert (settings.drain_notice_s, settings.drain_timeout_s) == (0.5, 120.0)
    assert settings.engine.prefix_caching is False
    assert read("--step-time-target=0").engine.step_time_target == 0.0
    assert read("--step-time-target", "1").engine.step_time_target == 1.0
    assert read(TIDEGATE_NO_PREFIX_CACHING="false").engine.prefix_caching is True
    for text, size_bytes in {"2GiB": 2**31, "2Gi": 2**31, "2G": 2 * 10**9, "64mb": 64 * 10**6, "4096": 4096}.items():
        assert read("--kv-cache-memory", text).engine.kv_cache_memory_bytes == size_bytes
    assert read("--swap-memory=0").engine.swap_memory_bytes == 0
    with pytest.raises(InvalidSetting, match=r"^--kv-cache-memory: .*1 bytes and 8 EiB"):
        read("--kv-cache-memory=0")


def test_a_flag_that_is_not_there_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidSetting, match=r"^--max-model-length: .* did you mean --max-model-len\?$"):
        read("--max-model-length", "5")
    with pytest.raises(InvalidSetting, match=r"^--port: "):
        read("--port")
    with pytest.raises(InvalidSetting, match=r"^--max-model: "):  # no abbreviations: a new flag would change them
        read("--max-model", "5")


def test_another_name_of_a_flag_is_named_as_it_was_typed() -> None:
    with pytest.raises(InvalidSetting, match=r"^--kv-cache-memory-bytes: 'abc' is not a size"):
        read("--kv-cache-memory-bytes", "abc")


@pytest.mark.parametrize(
    ("arguments", "environment", "named"),
    [
        pytest.param(["--kv-cache-memory=1KiB"], {}, "--kv-cache-memory", id="the flag"),
        pytest.param(["--kv-cache-memory-bytes=1024"], {}, "--kv-cache-memory-bytes", id="its other name"),
        pytest.param([], {"TIDEGATE_KV_CACHE_MEMORY": "1KiB"}, "TIDEGATE_KV_CACHE_MEMORY", id="its variable"),
        pytest.param([], {}, "--kv-cache-memory", id="nobody gave it"),
    ],
)
def test_what_is_found_wrong_later_is_named_after_what_gave_it(
    arguments: list[str], environment: dict[str, str], named: str
) -> None:
    later = as_given(InvalidSetting("--kv-cache-memory", "too little"), arguments, environment)
    assert (str(later), later.flag) == (f"{named}: too little", named)


def test_an_unknown_variable_is_a_warning_with_the_nearest_one() -> None:
    _, warnings = read_settings([], {"TIDEGATE_MODLE": "x", "HOME": "/root"})
    assert warnings == ("TIDEGATE_MODLE is not a setting and is ignored; did you mean TIDEGATE_MODEL?",)


def test_what_kubernetes_tells_of_a_service_called_tidegate_is_no_setting() -> None:
    links = {
        "TIDEGATE_SERVICE_HOST": "10.96.0.7",
        "TIDEGATE_SERVICE_PORT": "8000",
        "TIDEGATE_SERVICE_PORT_HTTP": "8000",
        "TIDEGATE_PORT": "tcp://10.96.0.7:8000",
        "TIDEGATE_PORT_8000_TCP": "tcp://10.96.0.7:8000",
        "TIDEGATE_PORT_8000_TCP_ADDR": "10.96.0.7",
        "TIDEGATE_DEMO_SERVICE_HOST": "10.96.0.8",
        "TIDEGATE_DEMO_PORT": "tcp://10.96.0.8:8000",
    }
    assert read_settings([], links) == (ServerSettings(engine=EngineSettings()), ())


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert read(TIDEGATE_MAX_MODEL_LEN="") == read()


def test_memory_and_number_of_blocks_exclude_each_other() -> None:
    with pytest.raises(InvalidSetting, match=r"^--num-kv-blocks: .*--kv-cache-memory"):
        read("--kv-cache-memory=1GiB", "--num-kv-blocks=5")
    with pytest.raises(InvalidSetting, match=r"^--num-kv-blocks: .*TIDEGATE_KV_CACHE_MEMORY"):
        read("--num-kv-blocks=5", TIDEGATE_KV_CACHE_MEMORY="1GiB")


def test_the_two_ports_differ() -> None:
    with pytest.raises(InvalidSetting, match=r"^--port: 9000"):
        read("--port=9000")
    assert read("--port=0", "--ops-port=0").port == 0


def test_the_model_may_stand_without_its_flag_but_not_twice() -> None:
    assert read("file:///m").model_uri == "file:///m"
    with pytest.raises(InvalidSetting, match=r"^--model: .*twice"):
        read("a", "--model", "b")


def test_help_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        read("--help")
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert all(option.flag in shown for option in ALL_OPTIONS)


def test_the_served_name_is_known_before_the_files_are() -> None:
    assert name_in_uri("hf://org/name@main") == "org/name"
    assert name_in_uri("builtin://smollm2-135m-instruct") == "smollm2-135m-instruct"
    assert name_in_uri("file:///models/my%20model/") == "my model"
    assert name_in_uri("/models/tiny.gguf") == "tiny"
    assert name_in_uri("~nosuchuser/tiny") == "tiny"
    assert name_in_uri("/models/tiny/../other") == "other"
    assert read("--served-model-name=mine").model_name == "mine"


def test_the_name_in_a_uri_is_the_one_that_the_files_have(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    for uri in ("builtin://smollm2-135m-instruct", str(folder), f"file://{folder}"):
        assert name_in_uri(uri) == resolve_model(uri).name
