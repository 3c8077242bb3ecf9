"""A recorded run comes out the same again, and what does not is named."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import msgspec
import pytest

from tests.server.engine.counting_runner import BAD_TOKEN, DEADLY_TOKEN, NAN_TOKEN, CountingRunner
from tests.server.engine.driving import Driver, add_request
from tests.server.engine.recordings import head_for
from tidegate_server.engine.batch import Batch, RunnerBroken, SampledToken
from tidegate_server.engine.faults import OutOfMemory
from tidegate_server.engine.messages import AbortRequest
from tidegate_server.engine.recording import InvalidRecording, RecordedResult, RecordedStep, Recording
from tidegate_server.engine.replay import Difference, num_blocks_needed, schedule_difference, token_difference
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.settings import EngineSettings, PreemptionMode

MODEL = CountingRunner(num_kv_blocks=10, max_model_len=28, mixes=True, vocab_size=900)
SETTINGS = EngineSettings(max_num_seqs=4, max_num_batched_tokens=10, seed=3, record_dir="/records")


def model(num_kv_blocks: int = MODEL.num_kv_blocks) -> CountingRunner:
    """The model anew, with an empty cache."""
    return replace(MODEL, batches=[], num_kv_blocks=num_kv_blocks)


def model_for(recording: Recording) -> CountingRunner:
    """The model with as many blocks as a replay may need."""
    return model(max(MODEL.num_kv_blocks, num_blocks_needed(recording, MODEL.block_size)))


def record(
    play: Callable[[Driver], None], runner: CountingRunner | None = None, settings: EngineSettings = SETTINGS
) -> Recording:
    """What an engine records while a test plays."""
    runner = runner if runner is not None else model()
    driver = Driver(runner, **{name: getattr(settings, name) for name in settings.__dataclass_fields__})
    play(driver)
    return driver.engine.recorder.recording(head_for(runner, settings), "asked")


def busy(seed: int) -> Callable[[Driver], None]:
    """Arrivals, aborts and steps at random: with so few blocks, requests are preempted and find each other's blocks."""

    def play(driver: Driver) -> None:
        random = Random(seed)
        for number in range(30):
            for each in range(random.randrange(3)):
                prompt = [7, 7, 7, 7, *(random.randrange(100) for _ in range(random.randrange(1, 6)))]
                sampling = SamplingParams(max_tokens=random.randrange(1, 24))
                driver.add(add_request(f"{number}.{each}", prompt, sampling=sampling, priority=random.randrange(2)))
            if random.random() < 0.3:
                driver.engine.apply(AbortRequest(request_id=f"{random.randrange(number + 1)}.0"))
            driver.step()

    return play


@pytest.mark.parametrize("seed", range(5))
def test_the_schedule_and_the_tokens_come_out_the_same(seed: int) -> None:
    recording = record(busy(seed))
    assert recording.is_whole
    assert any(step.preempted for step in recording.steps)
    assert schedule_difference(recording) is None
    assert token_difference(recording, model_for(recording)) is None


@pytest.mark.parametrize("seed", range(5))
def test_the_tokens_come_out_the_same_when_the_beginning_is_forgotten(seed: int) -> None:
    recording = record(busy(seed), settings=replace(SETTINGS, record_steps=7))
    assert len(recording.steps) == 7
    assert recording.head.known
    assert token_difference(recording, model_for(recording)) is None


@pytest.mark.parametrize("mode", PreemptionMode)
@pytest.mark.parametrize("seed", range(3))
def test_preempting_in_any_way_and_copies_that_fail_come_out_the_same(mode: PreemptionMode, seed: int) -> None:
    coin = Random(seed)
    runner = replace(
        model(), num_host_blocks=8, swap_bytes_per_s=1e9, copy_fails=lambda direction, copy: coin.random() < 0.5
    )
    recording = record(busy(seed), runner, replace(SETTINGS, preemption_mode=mode))
    if mode is PreemptionMode.SWAP:
        assert any(step.failed_copies for step in recording.steps)
    assert schedule_difference(recording) is None
    assert token_difference(recording, model_for(recording)) is None


def test_choices_of_one_prompt_come_out_the_same() -> None:
    def play(driver: Driver) -> None:
        for number in range(4):
            choices = [SamplingParams(max_tokens=9, choice=choice) for choice in range(3)]
            prompt, leader_id = [number, 1, 2, 3, 4, 5], f"{number}.0"
            driver.add(
                *(
                    add_request(f"{number}.{each.choice}", prompt, sampling=each, leader_id=leader_id)
                    for each in choices
                )
            )
            driver.step()
        driver.run()

    recording = record(play)
    assert schedule_difference(recording) is None
    assert token_difference(recording, model_for(recording)) is None


def changed(recording: Recording, index: int, **fields: object) -> Recording:
    """The same recording, but for one step."""
    steps = list(recording.steps)
    steps[index] = msgspec.structs.replace(steps[index], **fields)
    return Recording(recording.head, tuple(steps))


def simple(driver: Driver) -> None:
    driver.add(add_request("a", [1, 2, 3], max_tokens=4), add_request("b", [50], max_tokens=4))
    driver.run()


def test_a_changed_token_is_found_and_named() -> None:
    recording = record(simple)
    first, second = recording.steps[1].results
    assert second.request_id == "b"
    token_id = second.token_ids[0]
    wrong = RecordedResult("b", (token_id + 1,), None, None)
    found = token_difference(changed(recording, 1, results=(first, wrong)), model())
    assert found == Difference(2, "b", f"recorded was token {token_id + 1}, now it is {token_id}")
    assert str(found).startswith("step 2, request b: recorded was token")


def test_a_changed_share_is_found_and_named() -> None:
    recording = record(simple)
    first, second = recording.steps[0].scheduled
    shorter = msgspec.structs.replace(first, num_tokens=2)
    found = schedule_difference(changed(recording, 0, scheduled=(shorter, second)))
    assert found is not None
    assert (found.step, found.request_id) == (1, "a")
    assert "2 tokens of a from position 0 on" in found.what
    assert "now it is 3 tokens of a" in found.what


def test_a_request_that_was_not_scheduled_then_is_named() -> None:
    recording = record(simple)
    found = schedule_difference(changed(recording, 1, scheduled=recording.steps[1].scheduled[:1]))
    assert found is not None
    assert (found.step, found.request_id) == (2, "b")
    assert found.what.startswith("recorded was nothing")


def test_another_model_draws_other_tokens() -> None:
    found = token_difference(record(simple), replace(MODEL, batches=[], mixes=False))
    assert found is not None
    assert (found.step, found.request_id) == (1, "a")


@pytest.mark.parametrize("culprit", [BAD_TOKEN, NAN_TOKEN])
def test_a_fault_of_a_request_comes_again(culprit: int) -> None:
    def play(driver: Driver) -> None:
        driver.add(add_request("bad", [1, culprit]))
        simple(driver)

    recording = record(play, CountingRunner())
    assert [result.error is not None for result in recording.steps[0].results] == [True, False, False]
    assert schedule_difference(recording) is None
    assert token_difference(recording, CountingRunner()) is None


def test_a_fault_that_does_not_come_again_is_named() -> None:
    recording = record(simple)
    first, _ = recording.steps[0].results
    failed = RecordedResult("b", (), None, "ValueError: no")
    found = token_difference(changed(recording, 0, results=(first, failed)), model())
    assert found == Difference(1, "b", "recorded was its failure (ValueError: no), now it does not fail")


def die(driver: Driver) -> None:
    driver.add(add_request("a", [1, 2, 3]), add_request("deadly", [DEADLY_TOKEN]))
    with pytest.raises(RunnerBroken):
        driver.run()


def test_the_step_in_which_an_engine_ended_ends_it_again() -> None:
    recording = record(die, CountingRunner())
    assert recording.steps[-1].ended_s is None
    assert schedule_difference(recording) is None
    assert token_difference(recording, CountingRunner()) is None


def test_a_step_that_does_not_end_the_engine_again_is_named() -> None:
    recording = record(simple)
    cut = Recording(recording.head, recording.steps[:2])
    found = token_difference(changed(cut, 1, results=(), ended_s=None), model())
    assert found is not None
    assert (found.step, found.what) == (2, "when it was recorded the engine failed in it, and now it does not")


@dataclass
class ForgetfulMemory(CountingRunner):
    """Runs out of memory in these steps, the first time."""

    without_memory: set[int] = field(default_factory=set)

    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        if batch.step in self.without_memory:
            self.without_memory.discard(batch.step)
            raise OutOfMemory("no memory")
        return super().run(batch)


def test_blocks_that_were_lost_for_want_of_memory_are_lost_again() -> None:
    runner = ForgetfulMemory(num_kv_blocks=32, max_model_len=40, mixes=True, without_memory={2, 3, 4, 5})
    recording = record(busy(1), runner)
    assert (recording.steps[-1].kv_blocks_total or 0) < 32
    assert schedule_difference(recording) is None


def test_a_replay_gives_blocks_of_others_up_where_it_has_too_few() -> None:
    recording = record(busy(2), settings=replace(SETTINGS, max_num_seqs=2))
    needed = num_blocks_needed(recording, MODEL.block_size)
    assert token_difference(recording, model(needed)) is None


def only(step: RecordedStep) -> Recording:
    return Recording(head_for(MODEL, SETTINGS), (step,))


@pytest.mark.parametrize("start", [0, 3], ids=["a request that never came", "tokens that were never drawn"])
def test_a_recording_that_cannot_be_is_refused(start: int) -> None:
    recording = record(simple)
    (share, _) = recording.steps[0].scheduled
    commands: Sequence[object] = recording.steps[0].commands if start else ()
    step = msgspec.structs.replace(
        recording.steps[0], commands=commands, scheduled=(msgspec.structs.replace(share, start=start),)
    )
    with pytest.raises(InvalidRecording, match="step 1: "):
        token_difference(only(step), model())
