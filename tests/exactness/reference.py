"""transformers as the judge: greedy tokens and logits of its own implementation of a model."""

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps progress bars off the report, and warnings of other packages' making from failing our tests."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def load_gguf_reference(path: Path) -> Any:
    """transformers' model of a GGUF file, de-quantised to fp32."""
    with quiet():
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


def greedy_tokens(model: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What `generate` gives without sampling; an end token ends nothing."""
    with quiet(), torch.inference_mode():
        output = model.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=-1,  # no token has this id; None would fall back to the model's own
            pad_token_id=0,
        )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    assert len(tokens) == num_tokens, "the reference stopped early"
    return tokens


def next_token_logits(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """fp32 `[vocab_size]` after the last token."""
    with quiet(), torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([list(tokens)])).logits[0, -1]
    return logits
