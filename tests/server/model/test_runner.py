"""A loaded runner on a small random model: what the engine reads of it, what it draws, and how it fails."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.server.model.gguf_writing import small_tensors, write_gguf
from tests.server.model.small_model import write_small_model
from tidegate_kernels.cpu.library import load_library
from tidegate_server.engine.batch import (
    NO_COPIES,
    Batch,
    BlockCopies,
    BlockCopy,
    LoadedRunner,
    RequestId,
    RunnerBroken,
    ScheduledRequest,
)
from tidegate_server.engine.faults import OutOfMemory
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.errors import BadLogits, InvalidSetting, StartError
from tidegate_server.model import runner as runner_module
from tidegate_server.model.runner import ModelRunner, load_runner
from tidegate_server.model_source import resolve_model
from tidegate_server.settings import EngineSettings

SETTINGS = EngineSettings(device="cpu", dtype="float32", num_kv_blocks=8)
BLOCK_BYTES = 2 * 2 * 2 * 8 * 16 * 4  # layers, keys and values, heads, numbers, tokens, bytes
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_small_model(tmp_path)


@pytest.fixture(params=["none", "auto"], ids=["torch", "CPU kernels"])
def runner(folder: Path, request: pytest.FixtureRequest) -> ModelRunner:
    return load_runner(replace(SETTINGS, cpu_isa=request.param), resolve_model(str(folder)))


def scheduled(
    name: str, start: int, tokens: list[int], blocks: list[int], sampling: SamplingParams | None = GREEDY
) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=RequestId(name), start=start, token_ids=tokens, block_table=blocks, sampling=sampling, seed=1
    )


def draw(runner: ModelRunner, *requests: ScheduledRequest) -> list[tuple[str, int]]:
    return [(t.request_id, t.token_id) for t in runner.run(Batch(step=1, scheduled=requests))]


def test_the_engine_reads_what_it_must_know(runner: ModelRunner, request: pytest.FixtureRequest) -> None:
    loaded: LoadedRunner = runner
    assert (loaded.max_model_len, loaded.num_kv_blocks, loaded.block_size, loaded.vocab_size) == (64, 8, 16, 40)
    assert (loaded.eos_token_ids, loaded.device, loaded.dtype) == ((2,), "cpu", "float32")
    assert (loaded.block_bytes, loaded.num_host_blocks, loaded.swap_bytes_per_s) == (BLOCK_BYTES, 0, 0.0)
    library = load_library()
    is_torch = request.node.callspec.params["runner"] == "none" or library is None
    assert loaded.kernels == ("torch" if is_torch or library is None else f"cpu-{library.isa()}")


def test_a_context_that_the_blocks_cannot_hold_is_told(folder: Path, runner: ModelRunner) -> None:
    assert runner.lowered_from is None
    lowered = load_runner(replace(SETTINGS, num_kv_blocks=2), resolve_model(str(folder)))
    assert (lowered.max_model_len, lowered.lowered_from) == (32, 64)


def test_only_requests_that_draw_get_a_token(runner: ModelRunner) -> None:
    drawn = draw(
        runner,
        scheduled("chunk", 0, [1, 2, 3], [1], sampling=None),
        scheduled("a", 0, [4, 5], [2]),
        scheduled("b", 0, [6], [3]),
    )
    assert [name for name, _ in drawn] == ["a", "b"]
    assert draw(runner, scheduled("chunk", 3, [7], [1], sampling=None)) == []


def test_a_prompt_in_chunks_draws_what_it_draws_at_once(runner: ModelRunner) -> None:
    prompt = [(7 * i) % 40 for i in range(40)]
    at_once = draw(runner, scheduled("a", 0, prompt, [1, 2, 3]))
    draw(runner, scheduled("a", 0, prompt[:13], [4], sampling=None))
    draw(runner, scheduled("a", 13, prompt[13:20], [4, 5], sampling=None))
    assert draw(runner, scheduled("a", 20, prompt[20:], [4, 5, 6])) == at_once


def test_a_batch_may_be_run_again(runner: ModelRunner) -> None:
    requests = (scheduled("a", 0, [1, 2, 3], [1]), scheduled("b", 0, [4], [2]))
    assert draw(runner, *requests) == draw(runner, *requests) == draw(runner, requests[0]) + draw(runner, requests[1])


def test_a_request_whose_cache_holds_no_numbers_is_named(runner: ModelRunner) -> None:
    draw(runner, scheduled("good", 0, [1], [1]), scheduled("bad", 0, [1], [2]))
    with torch.inference_mode():
        runner.kv_cache.blocks[2] = torch.nan
    with pytest.raises(BadLogits) as caught:
        draw(runner, scheduled("good", 1, [2], [1]), scheduled("bad", 1, [2], [2]))
    assert caught.value.request_id == "bad"
    assert draw(runner, scheduled("good", 1, [2], [1]))[0][0] == "good"


def test_a_lost_device_breaks_the_runner(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nmore lines")

    monkeypatch.setattr(runner_module, "build_inputs", lost)
    with pytest.raises(RunnerBroken, match=r"illegal memory access was encountered$"):
        draw(runner, scheduled("a", 0, [1], [1]))


def test_a_request_goes_on_after_its_blocks_were_in_host_memory(
    folder: Path, runner: ModelRunner, request: pytest.FixtureRequest
) -> None:
    settings = replace(SETTINGS, cpu_isa=request.node.callspec.params["runner"], swap_memory_bytes=5 * BLOCK_BYTES)
    swapping = load_runner(settings, resolve_model(str(folder)))
    assert swapping.num_host_blocks == 4
    assert swapping.swap_bytes_per_s > 0
    prompt = [(7 * i) % 40 for i in range(20)]
    expected = [draw(runner, scheduled("a", 0, prompt, [1, 2])), draw(runner, scheduled("a", 20, [9], [1, 2]))]

    drawn = [draw(swapping, scheduled("a", 0, prompt, [1, 2]))]
    out = (BlockCopy(1, 4), BlockCopy(2, 1))
    assert swapping.copy_blocks(BlockCopies(swap_out=out)) == NO_COPIES
    draw(swapping, scheduled("b", 0, list(range(30)), [2, 1]))
    back = BlockCopies(within=(BlockCopy(3, 8),), swap_in=(BlockCopy(4, 5), BlockCopy(1, 7)))
    assert swapping.copy_blocks(back) == NO_COPIES
    drawn.append(draw(swapping, scheduled("a", 20, [9], [5, 7])))
    assert drawn == expected


def test_a_device_lost_while_copying_breaks_the_runner(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, **__: object) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nmore lines")

    monkeypatch.setattr(torch.Tensor, "copy_", lost)
    with pytest.raises(RunnerBroken, match=r"illegal memory access was encountered$"):
        runner.copy_blocks(BlockCopies(within=(BlockCopy(1, 2),)))


def test_host_memory_that_cannot_be_had_stops_the_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(runner_module, "allocate_host_blocks", refuse)
    with pytest.raises(InvalidSetting, match=r"--swap-memory: .*Cannot allocate memory"):
        load_runner(replace(SETTINGS, swap_memory_bytes=5 * BLOCK_BYTES), resolve_model(str(folder)))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: not enough memory: you tried"),
    ],
    ids=["on a device", "in Python", "on a CPU"],
)
def test_a_pass_without_memory_is_told_from_a_bad_request(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(runner_module, "build_inputs", fail)
    with pytest.raises(OutOfMemory, match=type(error).__name__):
        draw(runner, scheduled("a", 0, [1], [1]))


def test_a_gguf_file_draws_what_its_safetensors_draw(runner: ModelRunner, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf", small_tensors(), {"tokenizer.ggml.eos_token_id": 2})
    same = load_runner(SETTINGS, resolve_model(str(path)))
    prompt = [(11 * i) % 40 for i in range(30)]
    assert draw(same, scheduled("a", 0, prompt, [1, 2])) == draw(runner, scheduled("a", 0, prompt, [1, 2]))


def test_half_precision_runs_too(folder: Path) -> None:
    for dtype in ("bfloat16", "float16"):
        half = load_runner(replace(SETTINGS, dtype=dtype), resolve_model(str(folder)))
        assert half.dtype == dtype
        prompt = [(3 * i) % 40 for i in range(20)]
        at_once = draw(half, scheduled("a", 0, prompt, [1, 2]))
        draw(half, scheduled("a", 0, prompt[:9], [3], sampling=None))
        assert draw(half, scheduled("a", 9, prompt[9:], [3, 4]), scheduled("b", 0, [5], [5]))[:1] == at_once


def test_too_few_blocks_lower_the_longest_request(folder: Path) -> None:
    assert load_runner(replace(SETTINGS, num_kv_blocks=2), resolve_model(str(folder))).max_model_len == 32


def test_a_setting_that_cannot_be_met_stops_the_load(folder: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"--max-model-len: .*33 tokens needs 3 KV blocks"):
        load_runner(replace(SETTINGS, num_kv_blocks=2, max_model_len=33), resolve_model(str(folder)))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_damaged_file_stops_the_load_with_one_line(folder: Path, name: str) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:50])
    with pytest.raises(StartError) as caught:
        load_runner(SETTINGS, resolve_model(str(folder)))
    assert "\n" not in str(caught.value)
