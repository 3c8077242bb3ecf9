"""A batch laid out as tensors."""

import pytest
import torch

from tidegate_server.engine.batch import Batch, RequestId, ScheduledRequest
from tidegate_server.engine.faults import UnpreparedRequest
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.engine.slots import slot_mapping
from tidegate_server.model.inputs import build_inputs

SAMPLING = SamplingParams(max_tokens=1)


def scheduled(start: int, token_ids: list[int], block_table: list[int], *, draws: bool = True) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=RequestId(f"{start}-{token_ids}"),
        start=start,
        token_ids=token_ids,
        block_table=block_table,
        sampling=SAMPLING if draws else None,
        seed=0,
    )


def test_prompts_and_decodes_are_laid_out_one_after_the_other() -> None:
    batch = Batch(
        step=1,
        scheduled=(
            scheduled(9, [70], [5, 2, 8]),
            scheduled(0, [10, 11, 12, 13, 14], [3, 1], draws=False),
            scheduled(3, [20, 21], [7, 4]),
        ),
    )
    inputs = build_inputs(batch, block_size=4, device=torch.device("cpu"))
    assert inputs.token_ids.tolist() == [70, 10, 11, 12, 13, 14, 20, 21]
    assert inputs.positions.tolist() == [9, 0, 1, 2, 3, 4, 3, 4]
    assert inputs.slot_mapping.tolist() == [8 * 4 + 1, 12, 13, 14, 15, 4, 7 * 4 + 3, 4 * 4 + 0]
    assert inputs.query_start.tolist() == [0, 1, 6, 8]
    assert inputs.context_len.tolist() == [10, 5, 5]
    assert inputs.block_table.tolist() == [[5, 2, 8], [3, 1, 0], [7, 4, 0]]
    assert inputs.sampled_rows.tolist() == [0, 7]


def test_types_are_those_the_kernels_ask_for() -> None:
    inputs = build_inputs(Batch(step=1, scheduled=(scheduled(0, [1], [1]),)), 4, torch.device("cpu"))
    for name in ("token_ids", "positions", "slot_mapping", "sampled_rows"):
        assert getattr(inputs, name).dtype is torch.int64, name
    for name in ("block_table", "query_start", "context_len"):
        assert getattr(inputs, name).dtype is torch.int32, name


def test_slots_agree_with_the_engines_own() -> None:
    table = [9, 3, 6, 2]
    inputs = build_inputs(Batch(step=1, scheduled=(scheduled(5, list(range(20)), table),)), 8, torch.device("cpu"))
    assert inputs.slot_mapping.tolist() == slot_mapping(table, 5, 25, 8)


def test_blocks_beyond_this_step_are_left_out() -> None:
    inputs = build_inputs(Batch(step=1, scheduled=(scheduled(0, [1, 2], [4, 5, 6]),)), 4, torch.device("cpu"))
    assert inputs.block_table.tolist() == [[4]]


def test_a_block_table_that_ends_too_early_is_refused_and_named() -> None:
    with pytest.raises(UnpreparedRequest, match="1 blocks of 4 tokens end before position 4") as refused:
        build_inputs(Batch(step=1, scheduled=(scheduled(3, [1, 2], [4]),)), 4, torch.device("cpu"))
    assert refused.value.request_id == "3-[1, 2]"
