"""Every combination of what a server does to a request leaves its tokens and the bits of its log-probabilities alone.

The axes: in company or not, chunks of prompts, the prefix cache, preemption, threads, number format, quantised weights
or their numbers, instruction set.
"""

import itertools
import random
from dataclasses import dataclass
from functools import lru_cache

import pytest

from tests.exactness.driving import Answer, Driver, greedy, run_alone
from tidegate_kernels.cpu.library import load_library
from tidegate_server.engine.preemption_kind import PreemptionKind
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.model.runner import ModelRunner, load_runner
from tidegate_server.model_source import resolve_model
from tidegate_server.settings import EngineSettings, Quantization

pytestmark = pytest.mark.real_model

NUM_TOKENS = 6
NUM_BLOCKS = 96
BLOCK_SIZE = 16
WHOLE = 512  # more tokens than any prompt has
# Lengths on both sides of a block (16) and of a span of attention (256).
LENGTHS = {"short": 5, "two blocks": 33, "two spans": 270}
SAMPLED = SamplingParams(max_tokens=NUM_TOKENS, temperature=1.1, top_p=0.95, seed=11, ignore_eos=True, logprobs=0)

LIBRARY = load_library()
COMPANY = ("alone", "with mates")
CHUNKS = (1, 7, 64, WHOLE)
CACHES = ("off", "cold", "warm")
PREEMPTIONS = ("never", "recompute")
# Ways of losing blocks and of finding them that need host memory: each with each, but not with every company.
SWAPPING = tuple(itertools.product(("off", "cold", "host"), ("swap", "tail")))
DTYPES = ("float32", "bfloat16")
QUANTIZATIONS = (Quantization.NONE, Quantization.AUTO)


@dataclass(frozen=True)
class Case:
    isa: str
    dtype: str
    quantization: Quantization
    company: str
    chunk: int
    cache: str
    preemption: str
    num_threads: int

    def __str__(self) -> str:
        return (
            f"{self.isa} {self.dtype}, quantization {self.quantization}: {self.company}, chunk {self.chunk}, "
            f"cache {self.cache}, preempted {self.preemption}, {self.num_threads} threads"
        )


def cases() -> list[Case]:
    """The whole matrix for the instruction set that every machine has and for the best; the rest at their hardest."""
    isas = LIBRARY.supported_isas() if LIBRARY else ()
    whole = {(isas[0], "float32", Quantization.NONE), (isas[-1], "bfloat16", Quantization.NONE)} if isas else set()
    listed = []
    for kind in itertools.product(isas, DTYPES, QUANTIZATIONS):
        axes = itertools.product(COMPANY, CHUNKS, CACHES, PREEMPTIONS)
        hardest = itertools.product(COMPANY[-1:], CHUNKS, CACHES[-1:], PREEMPTIONS[-1:])
        swapping = (
            (company, chunk, cache, preemption)
            for company, chunk, (cache, preemption) in itertools.product(COMPANY[-1:], CHUNKS, SWAPPING)
        )
        chosen = itertools.chain(axes, swapping) if kind in whole else hardest
        for i, (company, chunk, cache, preemption) in enumerate(chosen):
            # One and two threads by turns, and the other way round in the other half.
            num_threads = 1 + (i + (company == COMPANY[0])) % 2
            listed.append(Case(*kind, company, chunk, cache, preemption, num_threads))
    return listed


@dataclass(frozen=True)
class Undisturbed:
    """A loaded model, prompts for it, and what it answers to each alone."""

    runner: ModelRunner
    prompts: dict[str, tuple[int, ...]]
    answers: dict[str, Answer]


@lru_cache(maxsize=1)  # cases of one kind follow each other, and a model takes half a gigabyte
def undisturbed(isa: str, dtype: str, quantization: Quantization) -> Undisturbed:
    settings = EngineSettings(
        device="cpu", dtype=dtype, cpu_isa=isa, quantization=quantization, num_kv_blocks=NUM_BLOCKS
    )
    runner = load_runner(settings, resolve_model("builtin://smollm2-135m-instruct"))
    draw = random.Random(3)
    prompts = {name: tuple(draw.randrange(1000, 40_000) for _ in range(length)) for name, length in LENGTHS.items()}
    answers: dict[str, Answer] = {}
    for name, prompt in prompts.items():
        answers |= run_alone(runner, {name: prompt}, sampling_of(name))
    return Undisturbed(runner, prompts, answers)


def sampling_of(name: str) -> SamplingParams:
    return SAMPLED if name == "two blocks" else greedy(NUM_TOKENS)


@pytest.mark.skipif(LIBRARY is None, reason="the CPU kernels were not built")
@pytest.mark.parametrize("case", cases(), ids=str)
def test_nothing_changes_a_request(case: Case) -> None:
    assert LIBRARY is not None
    model = undisturbed(case.isa, case.dtype, case.quantization)
    LIBRARY.start(case.isa, case.num_threads, None)
    # The longest prompt takes part where it costs no hundred steps.
    is_quick = case.chunk >= 64 or (case.chunk == 7 and case.cache == "warm")
    names = [name for name in model.prompts if is_quick or LENGTHS[name] < 64]
    driver = Driver(
        model.runner,
        EngineSettings(num_kv_blocks=NUM_BLOCKS, max_num_batched_tokens=case.chunk, prefix_caching=case.cache != "off"),
        num_host_blocks=NUM_BLOCKS,
    )
    if case.cache in ("warm", "host"):
        for name in names:
            driver.submit(f"{name}, before", model.prompts[name], greedy(1))
        driver.run()
    if case.cache == "host":
        pool = driver.engine.scheduler.pool
        pool.release(pool.take(pool.num_available))
    # Each request loses its blocks once, after so many tokens.
    due = {} if case.preemption == "never" else dict(zip(names, (1, 2, 4), strict=False))
    mates = random.Random(str(case))
    for name in names:
        driver.submit(name, model.prompts[name], sampling_of(name))
        if case.company == "alone":
            finish(driver, due, case.preemption)
        else:
            length = mates.randrange(1, 40)
            driver.submit(f"mate of {name}", [mates.randrange(49_000) for _ in range(length)], greedy(length % 9 + 1))
            advance(driver, due, case.preemption)
    finish(driver, due, case.preemption)

    scheduler = driver.engine.scheduler
    if case.preemption != "never":
        assert case.preemption in {kind for kind, _ in scheduler.preemptions}  # one block has no tail
    if case.cache == "host":
        assert scheduler.prefix_host_hit_tokens > 0
    for name in names:
        answer, expected = driver.answers[name], model.answers[name]
        assert answer.token_ids == expected.token_ids, name
        assert answer.logprobs == expected.logprobs, name
        assert (answer.num_preemptions > 0) == (case.preemption != "never"), name
        if case.cache in ("warm", "host") and LENGTHS[name] > BLOCK_SIZE:
            assert answer.num_cached_tokens > 0, name


def finish(driver: Driver, due: dict[str, int], preemption: str) -> None:
    while driver.engine.has_work:
        advance(driver, due, preemption)


def advance(driver: Driver, due: dict[str, int], preemption: str) -> None:
    """One step, and then the preemptions that are due."""
    driver.step()
    for name, num_tokens in list(due.items()):
        if name in driver.answers and len(driver.answers[name].token_ids) >= num_tokens:
            driver.engine.scheduler.preempt(name, 0.0, "the test says so", PreemptionKind(preemption))
            del due[name]


@pytest.mark.skipif(LIBRARY is None, reason="the CPU kernels were not built")
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_instruction_sets_give_the_same_bits(dtype: str, quantization: Quantization) -> None:
    assert LIBRARY is not None
    # Pairs of bfloat16 are rounded before they are multiplied: another kind of arithmetic.
    has_pairs = dtype == "bfloat16" and quantization is Quantization.NONE
    isas = [isa for isa in LIBRARY.supported_isas() if not has_pairs or isa != "avx512bf16"]
    of_each = [undisturbed(isa, dtype, quantization).answers for isa in isas]
    for answers in of_each[1:]:
        assert answers == of_each[0]


@pytest.mark.skipif(LIBRARY is None, reason="the CPU kernels were not built")
def test_quantised_weights_give_the_bits_of_their_numbers() -> None:
    assert LIBRARY is not None
    isa = LIBRARY.supported_isas()[-1]
    as_stored, as_numbers = (undisturbed(isa, "float32", quantization).answers for quantization in QUANTIZATIONS)
    assert as_stored == as_numbers
