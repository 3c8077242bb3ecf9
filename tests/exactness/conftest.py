"""The embedded model, loaded once: by us and by transformers, with eight prompts and what transformers answers."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import structlog
import torch

from tests.exactness.driving import Answer, greedy, run_alone
from tests.exactness.reference import greedy_tokens, load_gguf_reference
from tidegate_server.gguf_file import open_gguf
from tidegate_server.model.runner import ModelRunner, load_runner
from tidegate_server.model_source import ModelFiles, resolve_model
from tidegate_server.settings import EngineSettings
from tidegate_server.text.tokenizer import load_gguf_tokenizer

NUM_TOKENS = 64

# Short, long, more than one attention span (256 tokens), a shared beginning, another language, code, a chat turn.
TEXTS = {
    "one word": "Once",
    "a fact": "The capital of France is",
    "the same fact, asked on": "The capital of France is Paris. The capital of Italy is",
    "a list": "1. Wash the apples.\n2. Peel them.\n3.",
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "German": "Am Morgen ging der Fischer an den Strand und",
    "a chat": "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "a long story": "The tide came in over the flats, and the gate keeper counted the boats. " * 20 + "That night",
}


@dataclass(frozen=True)
class Expected:
    """What transformers answers to one prompt."""

    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]


@pytest.fixture(autouse=True, scope="module")
def _quiet_log() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Steps here are short; on a busy machine two threads mostly wait for each other: ten times slower, measured."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def files() -> ModelFiles:
    return resolve_model("builtin://smollm2-135m-instruct")


@pytest.fixture(scope="session")
def runner(files: ModelFiles) -> ModelRunner:
    return load_runner(EngineSettings(device="cpu", dtype="float32", num_kv_blocks=128), files)


@pytest.fixture(scope="session")
def prompts(files: ModelFiles) -> dict[str, tuple[int, ...]]:
    tokenizer = load_gguf_tokenizer(open_gguf(files.path))
    return {name: tuple(tokenizer.encode(text, add_special_tokens=True)) for name, text in TEXTS.items()}


@pytest.fixture(scope="session")
def expected(files: ModelFiles, prompts: dict[str, tuple[int, ...]]) -> dict[str, Expected]:
    model = load_gguf_reference(files.path)
    return {name: Expected(prompt, tuple(greedy_tokens(model, prompt, NUM_TOKENS))) for name, prompt in prompts.items()}


@pytest.fixture(scope="session")
def alone(runner: ModelRunner, prompts: dict[str, tuple[int, ...]]) -> dict[str, Answer]:
    """Our own answers, every request run by itself."""
    return run_alone(runner, prompts, greedy(NUM_TOKENS))
