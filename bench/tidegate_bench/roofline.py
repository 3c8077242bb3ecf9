"""What the machine lets anybody reach on a workload, from its bandwidth, its GEMM speed and the model's size."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tidegate_bench.launch import BenchError
from tidegate_bench.workloads import Workload

BYTES_PER_WEIGHT = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Roofline:
    """Measured on this machine, all cores."""

    read_bytes_per_s: float
    gemm_flop_per_s: float  # in the dtype of the run
    torch: str

    def best_of(self, other: "Roofline") -> "Roofline":
        """The higher of two measurements of each limit."""
        return Roofline(
            max(self.read_bytes_per_s, other.read_bytes_per_s),
            max(self.gemm_flop_per_s, other.gemm_flop_per_s),
            self.torch,
        )


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What one token costs: weights in matrices that every token passes, and in the one that gives logits."""

    layer_weights: int
    head_weights: int
    vocab_size: int


def model_cost(config: dict[str, int]) -> ModelCost:
    """From a Llama-like `config.json`."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    attention = hidden * head_dim * 2 * (config["num_attention_heads"] + config["num_key_value_heads"])
    mlp = 3 * hidden * config["intermediate_size"]
    return ModelCost(
        layer_weights=layers * (attention + mlp),
        head_weights=hidden * config["vocab_size"],
        vocab_size=config["vocab_size"],
    )


def read_model_cost(model: Path) -> ModelCost:
    try:
        return model_cost(json.loads((model / "config.json").read_text()))
    except (OSError, KeyError, json.JSONDecodeError) as failure:
        raise BenchError(f"--model {model}: needs a folder with a Llama-like config.json ({failure!r})") from None


def output_tokens_per_s_ceiling(workload: Workload, cost: ModelCost, roofline: Roofline, dtype: str) -> float:
    """The most output tokens a second that arithmetic and memory allow; attention and all else cost nothing.

    Every distinct prompt token and every output token passes the layers, every output token the head; and as many
    steps as the longest output has tokens read all weights once.
    """
    passes = workload.num_distinct_prompt_tokens + workload.num_output_tokens
    flop = 2 * (passes * cost.layer_weights + workload.num_output_tokens * cost.head_weights)
    num_steps = max(request.num_output_tokens for request in workload.requests)
    size_bytes = (cost.layer_weights + cost.head_weights) * BYTES_PER_WEIGHT[dtype]
    seconds = max(flop / roofline.gemm_flop_per_s, num_steps * size_bytes / roofline.read_bytes_per_s)
    return workload.num_output_tokens / seconds


def decode_tokens_per_s_ceiling(cost: ModelCost, roofline: Roofline, dtype: str) -> float:
    """The most tokens a second of one stream: each reads every weight once."""
    return roofline.read_bytes_per_s / ((cost.layer_weights + cost.head_weights) * BYTES_PER_WEIGHT[dtype])


def measure_roofline(dtype: str, num_cpus: int) -> Roofline:
    """Run the probe in a process of its own, so that its torch and its gigabyte are gone afterwards."""
    probe = Path(__file__).with_name("roofline_probe.py")
    command = [sys.executable, str(probe), "--threads", str(num_cpus), "--dtype", dtype]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise BenchError(f"the roofline probe failed: {finished.stderr[-800:]}")
    return Roofline(**json.loads(finished.stdout))
