from pathlib import Path

import pytest

from tidegate_server.bench.options import (
    OVERLOAD_KV_SEQUENCES,
    SAFE_VOCAB_SIZE,
    BenchOptions,
    EndpointChoice,
    EngineChoice,
    read_options,
    with_kv_sequences,
)
from tidegate_server.bench.workloads import LengthRange, WorkloadKind
from tidegate_server.errors import InvalidSetting
from tidegate_server.settings import EngineSettings

URL = "--url=http://127.0.0.1:8000/v1"


def read(*arguments: str, **environment: str) -> BenchOptions:
    return read_options(arguments, environment)


def engine_of(options: BenchOptions) -> EngineChoice:
    assert isinstance(options.target, EngineChoice)
    return options.target


def test_nothing_given_is_a_range_of_lengths_at_once_against_our_engine() -> None:
    options = read()
    assert engine_of(options).settings.engine == EngineSettings()
    assert engine_of(options).kv_sequences is None
    assert options.workload.kind is WorkloadKind.RANGE
    assert (options.workload.num_requests, options.workload.rate_per_s) == (64, None)
    assert options.ignore_eos


def test_flags_and_variables_of_the_engine_reach_it() -> None:
    choice = engine_of(
        read("--max-num-seqs", "8", "--no-prefix-caching", "--workload=fixed", "--model", "m", TIDEGATE_BLOCK_SIZE="32")
    )
    assert choice.settings.model_uri == "m"
    assert choice.settings.engine == EngineSettings(max_num_seqs=8, prefix_caching=False, block_size=32)


def test_the_seed_is_the_workloads_and_the_engines() -> None:
    options = read("--seed=7")
    assert options.workload.seed == 7
    assert engine_of(options).settings.engine.seed == 7


def test_the_engine_is_quiet_unless_somebody_asks() -> None:
    assert engine_of(read()).settings.log_level == "warning"
    assert engine_of(read("--log-level=debug")).settings.log_level == "debug"
    assert engine_of(read(TIDEGATE_LOG_LEVEL="info")).settings.log_level == "info"


def test_an_endpoint_has_a_name_to_ask_for_and_a_key_from_the_environment() -> None:
    options = read(URL, "--model=llama", "--api-key-env=KEY", "--metrics-url=http://a/metrics", KEY="secret")
    assert options.target == EndpointChoice(
        url="http://127.0.0.1:8000/v1",
        model="llama",
        api_key="secret",
        metrics_url="http://a/metrics",
        vocab_size=SAFE_VOCAB_SIZE,
    )


@pytest.mark.parametrize(("raw", "length"), [("12", LengthRange(12, 12)), ("3:12", LengthRange(3, 12))])
def test_a_length_is_a_number_or_a_range(raw: str, length: LengthRange) -> None:
    assert read("--input-len", raw).workload.prompt_tokens == length


def test_a_trace_file_makes_a_trace_of_all_its_requests() -> None:
    options = read("--trace=t.csv", "--speed-up=10")
    assert (options.workload.kind, options.trace) == (WorkloadKind.TRACE, Path("t.csv"))
    assert (options.workload.num_requests, options.workload.speed_up) == (None, 10.0)


def test_a_rate_within_a_duration_sets_the_number_of_requests() -> None:
    assert read("--rate=2", "--duration=30").workload.num_requests is None
    assert read("--rate=2").workload.num_requests == 64
    assert read("--rate=2", "--duration=30", "--num-requests=5").workload.num_requests == 5


def test_an_overload_leaves_kv_memory_for_eight_of_its_requests_unless_told_otherwise() -> None:
    assert engine_of(read("--workload=overload")).kv_sequences == OVERLOAD_KV_SEQUENCES == 8
    assert engine_of(read("--workload=overload", "--kv-sequences=3")).kv_sequences == 3
    assert engine_of(read("--workload=overload", "--num-kv-blocks=50")).kv_sequences is None


def test_kv_sequences_are_whole_blocks_each() -> None:
    assert with_kv_sequences(EngineSettings(block_size=16), 8, longest_tokens=33).num_kv_blocks == 8 * 3


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--workload=burst"], "--workload: 'burst' is not one of fixed, range"),
        (["--worklod=range"], "--worklod: there is no such flag; did you mean --workload?"),
        (["--max-num-seq=4"], "--max-num-seq: there is no such flag; did you mean --max-num-seqs?"),
        (["--port=80"], "--port: there is no such flag"),
        (["--max-num-seqs=many"], "--max-num-seqs: 'many' is not a whole number"),
        (["--num-requests=0"], "--num-requests: 0 is not between"),
        (["--input-len=9:3"], "--input-len: '9:3' is neither a length"),
        (["--input-len=0"], "--input-len: '0' is neither a length"),
        (["--workload=fixed", "--input-len=3:9"], "--input-len: a fixed length is one number"),
        (["--num-prefixes=3"], "--num-prefixes: --workload range does without it"),
        (["--trace=t", "--input-len=3"], "--input-len: --workload trace does without it"),
        (["--trace=t", "--workload=range"], "--trace: --workload range does without it"),
        (["--workload=trace"], "--workload: trace needs a file"),
        (["--trace=t", "--speed-up=2", "--rate=1"], "--speed-up: with --rate"),
        (["--rate=0"], "--rate: '0' is not a number above 0"),
        (["--rate=fast"], "--rate: 'fast' is not a number above 0"),
        (["--duration=0"], "--duration: '0' is no time at all"),
        (["--url=localhost:8000", "--model=m"], "--url: 'localhost:8000' is not a URL"),
        ([URL], "--model: with --url, give the name"),
        ([URL, "--model=m", "--max-num-seqs=4"], "--max-num-seqs: a flag of our engine"),
        ([URL, "--model=m", "--kv-sequences=4"], "--kv-sequences: our engine only"),
        ([URL, "--model=m", "--plot=a.png"], "--plot: it shows the engine's numbers"),
        ([URL, "--model=m", "--api-key-env=KEY"], "--api-key-env: KEY is not set"),
        (["--metrics-url=http://a/metrics"], "--metrics-url: an endpoint has it"),
        (["--kv-sequences=4", "--num-kv-blocks=9"], "--kv-sequences: the KV cache has its size"),
        (["--json=/no/such/folder/a.json"], "--json: /no/such/folder is no folder"),
        (["--rate"], "--rate: expected one argument"),
    ],
)
def test_a_wrong_call_is_told_with_its_flag(arguments: list[str], problem: str) -> None:
    with pytest.raises(InvalidSetting) as told:
        read(*arguments)
    assert str(told.value).startswith(problem)
