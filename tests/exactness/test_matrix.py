"""Every combination of what a server does to a request leaves its tokens and the bits of its log-probabilities alone.

The axes: in company or not, chunks of prompts, the prefix cache, preemption, threads, number format, instruction set.
"""

import itertools
import random
from dataclasses import dataclass

import pytest

from tests.exactness.driving import Answer, Driver, greedy, run_alone
from tidegate_kernels.cpu.library import load_library
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.model.runner import ModelRunner, load_runner
from tidegate_server.model_source import ModelFiles
from tidegate_server.settings import EngineSettings

pytestmark = pytest.mark.real_model

NUM_TOKENS = 10
NUM_BLOCKS = 96
WHOLE = 512  # more tokens than any prompt has
# Lengths on both sides of a block (16) and of a span of attention (256).
LENGTHS = {"short": 5, "two blocks": 33, "two spans": 270}
SAMPLED = SamplingParams(max_tokens=NUM_TOKENS, temperature=1.1, top_p=0.95, seed=11, ignore_eos=True, logprobs=0)

LIBRARY = load_library()
COMPANY = ("alone", "with mates")
CHUNKS = (1, 7, 64, WHOLE)
CACHES = ("off", "cold", "warm")
PREEMPTIONS = ("never", "recompute")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Case:
    isa: str
    dtype: str
    company: str
    chunk: int
    cache: str
    preemption: str
    num_threads: int

    def __str__(self) -> str:
        return (
            f"{self.isa} {self.dtype}: {self.company}, chunk {self.chunk}, cache {self.cache}, "
            f"preempted {self.preemption}, {self.num_threads} threads"
        )


def cases() -> list[Case]:
    """The whole matrix for the instruction set that every machine has and for the best; the rest at their hardest."""
    isas = LIBRARY.supported_isas() if LIBRARY else ()
    whole = {(isas[0], "float32"), (isas[-1], "bfloat16")} if isas else set()
    listed = []
    for kind in itertools.product(isas, DTYPES):
        axes = itertools.product(COMPANY, CHUNKS, CACHES, PREEMPTIONS)
        hardest = itertools.product(COMPANY[-1:], CHUNKS, CACHES[-1:], PREEMPTIONS[-1:])
        for i, (company, chunk, cache, preemption) in enumerate(axes if kind in whole else hardest):
            # One and two threads by turns, and the other way round in the other half.
            num_threads = 1 + (i + (company == COMPANY[0])) % 2
            listed.append(Case(*kind, company, chunk, cache, preemption, num_threads))
    return listed


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest, files: ModelFiles) -> ModelRunner:
    isa, dtype = request.param
    settings = EngineSettings(device="cpu", dtype=dtype, cpu_isa=isa, num_kv_blocks=NUM_BLOCKS)
    return load_runner(settings, files)


@pytest.fixture(scope="module")
def prompts(runner: ModelRunner) -> dict[str, tuple[int, ...]]:
    draw = random.Random(3)
    return {name: tuple(draw.randrange(1000, 40_000) for _ in range(length)) for name, length in LENGTHS.items()}


@pytest.fixture(scope="module")
def alone(runner: ModelRunner, prompts: dict[str, tuple[int, ...]]) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    for name, prompt in prompts.items():
        answers |= run_alone(runner, {name: prompt}, sampling_of(name))
    return answers


def sampling_of(name: str) -> SamplingParams:
    return SAMPLED if name == "two blocks" else greedy(NUM_TOKENS)


@pytest.mark.skipif(LIBRARY is None, reason="the CPU kernels were not built")
@pytest.mark.parametrize(
    ("runner", "case"),
    [pytest.param((case.isa, case.dtype), case, id=str(case)) for case in cases()],
    indirect=["runner"],
)
def test_nothing_changes_a_request(
    runner: ModelRunner, prompts: dict[str, tuple[int, ...]], alone: dict[str, Answer], case: Case
) -> None:
    assert LIBRARY is not None
    LIBRARY.start(case.isa, case.num_threads, None)
    chunk, cache, preemption = case.chunk, case.cache, case.preemption
    # One token a step would take the longest prompt through as many steps; seven show the same.
    names = [name for name in prompts if chunk > 1 or LENGTHS[name] < 64]
    settings = EngineSettings(
        num_kv_blocks=NUM_BLOCKS, max_num_batched_tokens=chunk, prefix_caching=cache != "off", max_num_seqs=8
    )
    driver = Driver(runner, settings)
    if cache == "warm":
        for name in names:
            driver.submit(f"{name}, before", prompts[name], greedy(1))
        driver.run()
    if case.company == "alone":
        for name in names:
            driver.submit(name, prompts[name], sampling_of(name))
            finish(driver, [name], preemption)
    else:
        mates = random.Random(f"{chunk} {cache} {preemption}")
        for name in names:
            driver.submit(name, prompts[name], sampling_of(name))
            length = mates.randrange(1, 40)
            driver.submit(f"mate of {name}", [mates.randrange(49_000) for _ in range(length)], greedy(length % 9 + 1))
            driver.step()
        finish(driver, names, preemption)

    for name in names:
        assert driver.answers[name].token_ids == alone[name].token_ids, name
        assert driver.answers[name].logprobs == alone[name].logprobs, name
        assert (driver.answers[name].num_preemptions > 0) == (preemption != "never"), name
        if cache == "warm" and LENGTHS[name] > 16:
            assert driver.answers[name].num_cached_tokens > 0, name


def finish(driver: Driver, names: list[str], preemption: str) -> None:
    """Step to the end, taking every named request's blocks away once, when it has given a few tokens."""
    left = {} if preemption == "never" else dict(zip(names, itertools.cycle((1, 3, 6)), strict=False))
    while driver.engine.has_work:
        driver.step()
        for name, after in list(left.items()):
            if len(driver.answers[name].token_ids) >= after:
                driver.engine.scheduler.preempt(name, 0.0, "the test says so")
                del left[name]
