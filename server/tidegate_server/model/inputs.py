"""A batch to the tensors of one forward pass."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tidegate_server.engine.batch import Batch, ScheduledRequest
from tidegate_server.engine.faults import UnpreparedRequest
from tidegate_server.engine.slots import BlockTableTooShort


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Requests one after the other, each with its new tokens in position order."""

    token_ids: Tensor  # int64 [num_tokens]
    positions: Tensor  # int64 [num_tokens]
    slot_mapping: Tensor  # int64 [num_tokens]
    block_table: Tensor  # int32 [num_requests, most blocks of one], padded with the null block 0
    query_start: Tensor  # int32 [num_requests + 1]
    context_len: Tensor  # int32 [num_requests], this step's tokens included
    sampled_rows: Tensor  # int64 [requests that draw]: the row of each one's last token


def build_inputs(batch: Batch, block_size: int, device: torch.device) -> ModelInputs:
    """Lay out a batch; every tensor is built on the host and copied once.

    Raises:
        UnpreparedRequest: a request's new tokens lie past its last block.
    """
    requests = batch.scheduled
    num_new = np.array([r.num_new_tokens for r in requests], dtype=np.int64)
    starts = np.array([r.start for r in requests], dtype=np.int64)
    query_start = np.zeros(len(requests) + 1, dtype=np.int64)
    np.cumsum(num_new, out=query_start[1:])
    context_len = starts + num_new

    block_table = _block_table(requests, context_len, block_size)
    request_of_token = np.repeat(np.arange(len(requests)), num_new)
    positions = np.arange(query_start[-1]) - query_start[request_of_token] + starts[request_of_token]
    blocks = block_table[request_of_token, positions // block_size].astype(np.int64)
    draws = np.array([r.sampling is not None for r in requests], dtype=np.bool_)

    def on_device(array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    return ModelInputs(
        token_ids=on_device(np.concatenate([np.asarray(r.token_ids, dtype=np.int64) for r in requests])),
        positions=on_device(positions),
        slot_mapping=on_device(blocks * block_size + positions % block_size),
        block_table=on_device(block_table),
        query_start=on_device(query_start.astype(np.int32)),
        context_len=on_device(context_len.astype(np.int32)),
        sampled_rows=on_device(query_start[1:][draws] - 1),
    )


def _block_table(
    requests: tuple[ScheduledRequest, ...], context_len: npt.NDArray[np.int64], block_size: int
) -> npt.NDArray[np.int32]:
    """Only the blocks that this step reads or writes: a request may hold more, for tokens to come."""
    num_blocks = -(-context_len // block_size)
    table = np.zeros((len(requests), int(num_blocks.max())), dtype=np.int32)
    for row, request in enumerate(requests):
        length = int(num_blocks[row])
        if length > len(request.block_table):
            problem = BlockTableTooShort(len(request.block_table), block_size, request.stop)
            raise UnpreparedRequest(request.request_id, str(problem))
        table[row, :length] = request.block_table[:length]
    return table
