import pytest

from tidegate_bench.roofline import (
    ModelCost,
    Roofline,
    decode_tokens_per_s_ceiling,
    model_cost,
    output_tokens_per_s_ceiling,
)
from tidegate_bench.workloads import FULL, PlannedRequest, Workload, build_workload

SMOLLM2_135M = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
}


def test_cost_of_smollm2_is_its_matrices() -> None:
    cost = model_cost(SMOLLM2_135M)
    assert cost.head_weights == 49152 * 576
    # 134.5 M parameters, of which 30 * 2 * 576 + 576 are norms and no matrix.
    assert cost.layer_weights + cost.head_weights == 134_515_008 - 61 * 576


def test_decode_ceiling_is_bandwidth_over_bytes_of_weights() -> None:
    cost = ModelCost(layer_weights=90, head_weights=10, vocab_size=0)
    roofline = Roofline(read_bytes_per_s=4000.0, gemm_flop_per_s=1.0, torch="")
    assert decode_tokens_per_s_ceiling(cost, roofline, "float32") == 10.0
    assert decode_tokens_per_s_ceiling(cost, roofline, "bfloat16") == 20.0


def test_burst_ceiling_is_set_by_arithmetic_and_one_stream_by_memory() -> None:
    cost = model_cost(SMOLLM2_135M)
    roofline = Roofline(read_bytes_per_s=30e9, gemm_flop_per_s=141e9, torch="")
    burst = output_tokens_per_s_ceiling(build_workload("W1", FULL), cost, roofline, "float32")
    stream = output_tokens_per_s_ceiling(build_workload("W4", FULL), cost, roofline, "float32")
    assert 150 < burst < 250
    assert stream == pytest.approx(decode_tokens_per_s_ceiling(cost, roofline, "float32"))


def test_shared_prefix_costs_its_arithmetic_once() -> None:
    cost = ModelCost(layer_weights=1, head_weights=0, vocab_size=0)
    roofline = Roofline(read_bytes_per_s=1e12, gemm_flop_per_s=2.0, torch="")
    alike = Workload("alike", tuple(PlannedRequest(i, 0.0, (1, 2, 3), 1) for i in range(2)))
    # Three tokens of the shared prompt and two of output pass the one weight, at one pass a second.
    assert output_tokens_per_s_ceiling(alike, cost, roofline, "float32") == pytest.approx(2 / 5)


def test_a_limit_is_the_best_of_its_measurements() -> None:
    assert Roofline(30e9, 90e9, "a").best_of(Roofline(20e9, 140e9, "a")) == Roofline(30e9, 140e9, "a")
