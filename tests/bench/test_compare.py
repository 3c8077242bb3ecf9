import asyncio
import json
import sys
from pathlib import Path

import pytest

from tidegate_bench.compare import AMPLE_KV_TOKENS, Plan, compare
from tidegate_bench.comparison import Comparison
from tidegate_bench.launch import BenchError, Launch, ServerOptions
from tidegate_bench.roofline import Roofline
from tidegate_bench.workloads import QUICK

CONFIG = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 2000,
}


class Fake:
    """A server whose process is the fake endpoint; notes what it was asked to start with."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.options: list[ServerOptions] = []

    def install(self, model: Path, dtype: str) -> str:
        return "0.1"

    def launch(self, options: ServerOptions) -> Launch:
        self.options.append(options)
        return Launch(argv=(sys.executable, "-m", "tests.bench.serve_fake", "--port", str(options.port)))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def measure(model: Path, servers: tuple[Fake, ...], workloads: tuple[str, ...], *, turns: int = 1) -> Comparison:
    plan = Plan(
        servers=servers,
        workloads=workloads,
        model=model,
        dtype="float32",
        scale=QUICK,
        repeats=2,
        turns=turns,
        seed=0,
        log_folder=model / "logs",
        command="python -m tidegate_bench compare",
    )
    return asyncio.run(compare(plan, lambda line: None, lambda dtype, num_cpus: Roofline(30e9, 140e9, "none")))


def test_servers_take_turns_and_each_runs_every_repeat(model: Path) -> None:
    measured = measure(model, (Fake("a"), Fake("b")), ("W4",), turns=2)
    assert [(run.server, run.turn, run.repeat) for run in measured.runs] == [
        ("a", 0, 0),
        ("a", 0, 1),
        ("b", 0, 0),
        ("b", 0, 1),
        ("a", 1, 0),
        ("a", 1, 1),
        ("b", 1, 0),
        ("b", 1, 1),
    ]
    assert [start.server for start in measured.starts] == ["a", "b", "a", "b"]
    assert all(run.summary.num_failed == 0 for run in measured.runs)
    assert all(start.ready_s > 0 and start.peak_rss_bytes > 0 for start in measured.starts)


def test_workloads_with_less_memory_get_a_start_of_their_own(model: Path) -> None:
    server = Fake("a")
    measured = measure(model, (server,), ("W5", "W1", "W4"))
    assert [options.kv_tokens for options in server.options] == [AMPLE_KV_TOKENS, QUICK.tight_kv_tokens]
    assert [run.workload for run in measured.runs] == ["W1", "W1", "W4", "W4", "W5", "W5"]


def test_limits_are_given_for_bursts_and_not_where_arrivals_set_the_pace(model: Path) -> None:
    limits = {ceiling.workload: ceiling for ceiling in measure(model, (), ("W1", "W3")).ceilings}
    assert limits["W1"].output_tokens_per_s is not None
    assert limits["W3"].output_tokens_per_s is None


def test_model_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"config\.json"):
        measure(tmp_path, (), ("W4",))
