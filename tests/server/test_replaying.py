"""`tidegate replay` on files of the counting model."""

from pathlib import Path

import pytest

from tests.server.engine.counting_runner import CountingRunner
from tests.server.engine.driving import add_request
from tests.server.engine.test_replay import SETTINGS, busy, record
from tests.server.model.small_model import write_small_model
from tidegate_server.engine.core import Engine
from tidegate_server.engine.recording import Recording, write_recording
from tidegate_server.engine.recording_writer import head_of
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.model.runner import load_runner
from tidegate_server.model_source import ModelFiles, resolve_model
from tidegate_server.replaying import EXIT_DIFFERS, EXIT_NOT_REPLAYED, EXIT_SAME, replay, settings_for
from tidegate_server.settings import EngineSettings, ExactMode


def load(settings: EngineSettings, files: ModelFiles) -> CountingRunner:
    return CountingRunner(num_kv_blocks=settings.num_kv_blocks or 0, max_model_len=28, mixes=True, vocab_size=900)


def load_another(settings: EngineSettings, files: ModelFiles) -> CountingRunner:
    return CountingRunner(num_kv_blocks=settings.num_kv_blocks or 0, max_model_len=28)


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """Stands for the model: it is found, and not read."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def file_with(recording: Recording, folder: Path) -> str:
    path = folder / "r.jsonl"
    write_recording(recording, path)
    return str(path)


def test_a_run_that_comes_out_the_same_is_exit_code_0(
    tmp_path: Path, gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay([file_with(record(busy(0)), tmp_path), f"--model={gguf}"], load) == EXIT_SAME
    told = capsys.readouterr().out
    assert "schedule: the same" in told
    assert "tokens: the same" in told


def test_a_run_without_its_beginning_says_what_was_not_tried(
    tmp_path: Path, gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = record(busy(0), settings=EngineSettings(max_num_seqs=4, record_dir="/records", record_steps=5))
    assert replay([file_with(recording, tmp_path), f"--model={gguf}"], load) == EXIT_SAME
    assert "schedule: followed, not decided again" in capsys.readouterr().out


def test_another_model_is_exit_code_1_and_the_first_difference(
    tmp_path: Path, gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay([file_with(record(busy(0)), tmp_path), f"--model={gguf}"], load_another) == EXIT_DIFFERS
    told = capsys.readouterr().out
    assert "schedule: the same" in told
    assert "tokens: step 1, request 0.0: recorded was token" in told


@pytest.mark.parametrize("name", ["nowhere.jsonl", "model.gguf"])
def test_what_is_no_recording_is_exit_code_2_and_one_line(
    tmp_path: Path, gguf: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay([str(tmp_path / name)], load) == EXIT_NOT_REPLAYED
    assert capsys.readouterr().err.count("\n") == 1


def test_a_missing_model_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay([file_with(record(busy(0)), tmp_path), "--model=/gone"], load) == EXIT_NOT_REPLAYED
    assert "ModelNotFound" in capsys.readouterr().err


def test_a_replay_has_the_recorded_settings_and_records_nothing() -> None:
    settings = settings_for(record(busy(0)))
    assert (settings.max_num_seqs, settings.seed) == (SETTINGS.max_num_seqs, SETTINGS.seed)
    assert (settings.num_kv_blocks or 0) >= 10
    assert (settings.record_dir, settings.exact) == (None, ExactMode.OFF)


def test_a_real_model_draws_its_recorded_tokens_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_small_model(tmp_path)
    settings = EngineSettings(device="cpu", dtype="float32", num_kv_blocks=8, max_num_batched_tokens=7, record_dir="/r")
    files = resolve_model(str(folder))
    runner = load_runner(settings, files)
    engine = Engine(runner, settings, files.revision)
    for number in range(4):
        sampling = SamplingParams(max_tokens=12, ignore_eos=True)
        engine.apply(add_request(str(number), [5, 6, *range(number * 5, number * 5 + 9)], sampling=sampling))
        engine.step()
    while engine.has_work:
        engine.step()
    recording = engine.recorder.recording(head_of(runner, settings, files), "asked")
    file = file_with(recording, tmp_path)
    assert replay([file]) == EXIT_SAME
    assert capsys.readouterr().out.endswith("schedule: the same\ntokens: the same\n")
