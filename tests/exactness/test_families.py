"""Small random models of each family, built from transformers' own config classes, agree with transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.exactness.driving import Driver, greedy
from tests.exactness.reference import greedy_tokens, next_token_logits, quiet
from tidegate_kernels.cpu.library import load_library, missing_because
from tidegate_server.engine.batch import Batch, RequestId, ScheduledRequest
from tidegate_server.model.inputs import build_inputs
from tidegate_server.model.runner import ModelRunner, load_runner
from tidegate_server.model_source import resolve_model
from tidegate_server.settings import EngineSettings

PROMPT = [(i * 37 + 11) % 250 for i in range(45)]
NUM_TOKENS = 24
SETTINGS = EngineSettings(device="cpu", num_kv_blocks=16)

# Logits here are of the order of one; fp32 rounding in another order of summing moves them by some 1e-6.
TOLERANCE = 2e-5

SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 48,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.25,
    "eos_token_id": 2,
}
LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def llama(**fields: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**SMALL | fields)


def mistral(**fields: Any) -> Any:
    from transformers import MistralConfig

    return MistralConfig(**SMALL | fields)


CASES = [
    pytest.param(lambda: llama(), "5GB", id="Llama, grouped queries, a head of its own"),
    pytest.param(lambda: llama(tie_word_embeddings=True), "5GB", id="Llama with a tied head"),
    pytest.param(lambda: llama(num_key_value_heads=6), "5GB", id="Llama, every query head with its own keys"),
    pytest.param(lambda: llama(head_dim=16), "5GB", id="Llama, heads wider than their share of hidden"),
    pytest.param(lambda: llama(attention_bias=True, mlp_bias=True), "5GB", id="Llama with biases"),
    pytest.param(lambda: llama(rope_parameters=LLAMA3_ROPE), "5GB", id="Llama 3 rope scaling"),
    pytest.param(lambda: llama(intermediate_size=1200), "5GB", id="Llama, sums longer than one span"),
    pytest.param(lambda: llama(), "100KB", id="Llama in several files"),
    pytest.param(lambda: mistral(sliding_window=None, head_dim=8), "5GB", id="Mistral"),
    pytest.param(lambda: mistral(sliding_window=128), "100KB", id="Mistral with a window over the whole context"),
]


def saved_model(config: Any, shard_size: str, folder: Path) -> Any:
    """A random model of this config, saved to `folder`; biases and norms too are random, so none can be left out."""
    with quiet():
        from transformers import AutoModelForCausalLM

        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(config).eval()
        for name, tensor in model.named_parameters():
            if tensor.dim() == 1:
                torch.nn.init.normal_(tensor, mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.3)
        model.save_pretrained(folder, max_shard_size=shard_size)
    return model


def our_logits(runner: ModelRunner, tokens: list[int]) -> torch.Tensor:
    request = ScheduledRequest(
        request_id=RequestId("prompt"),
        start=0,
        token_ids=tokens,
        block_table=range(1, 9),
        sampling=greedy(1),
        seed=0,
    )
    inputs = build_inputs(Batch(step=1, scheduled=(request,)), runner.block_size, runner.torch_device)
    with torch.inference_mode():
        return runner.decoder.forward(inputs, runner.kv_cache)[0]


@pytest.mark.parametrize("cpu_isa", ["none", "avx2", "auto"], ids=["torch", "AVX2", "the best"])
@pytest.mark.parametrize(("make_config", "shard_size"), CASES)
def test_a_family_agrees_with_transformers(make_config: Any, shard_size: str, cpu_isa: str, tmp_path: Path) -> None:
    if cpu_isa != "none" and load_library() is None:
        pytest.skip(missing_because())
    model = saved_model(make_config(), shard_size, tmp_path)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard_size == "100KB")
    runner = load_runner(replace(SETTINGS, cpu_isa=cpu_isa), resolve_model(str(tmp_path)))

    torch.testing.assert_close(our_logits(runner, PROMPT), next_token_logits(model, PROMPT), rtol=0, atol=TOLERANCE)

    driver = Driver(runner, EngineSettings(num_kv_blocks=16, max_num_batched_tokens=20))
    driver.submit("prompt", PROMPT, greedy(NUM_TOKENS))
    driver.submit("its mate", PROMPT[5:20], greedy(NUM_TOKENS))
    driver.run()
    assert driver.answers["prompt"].token_ids == greedy_tokens(model, PROMPT, NUM_TOKENS)
    assert driver.answers["its mate"].token_ids == greedy_tokens(model, PROMPT[5:20], NUM_TOKENS)
