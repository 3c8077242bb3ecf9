"""`SamplerOps` by the C library: no row is copied, no vocabulary sorted, and rows are shared out over its threads."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.structs import NO_MEMORY, TgArgmax, TgDraw, TgDrawRow, TgLogprobs, TgLogprobsRow
from tidegate_server.model.sampler import Draw, Row, TokenLogprobs


class CpuSamplerOps:
    """See `sampler.SamplerOps`; a row's bits are the same with any instruction set and any number of threads.

    Args:
        library: started.

    Raises:
        MemoryError: a thread got no memory to work in.
    """

    def __init__(self, library: Library) -> None:
        self._library = library

    def argmax(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        num_rows, num_columns = rows.shape
        maximum, index = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int64)
        self._library.run_argmax(
            TgArgmax(
                x=rows.data_ptr(),
                index=index.data_ptr(),
                maximum=maximum.data_ptr(),
                m=num_rows,
                n=num_columns,
                x_stride=rows.stride(0),
            )
        )
        return maximum, index

    def draw(self, rows: Sequence[Row], draws: Sequence[Draw]) -> list[int]:
        drawn = torch.empty(len(rows), dtype=torch.int64)
        structs = [
            TgDrawRow(
                x=_address(row.logits),
                random=draw.random,
                top_p=draw.sampling.top_p,
                top_k=draw.sampling.top_k or 0,
                maximum=row.maximum,
                temperature=draw.sampling.temperature,
            )
            for row, draw in zip(rows, draws, strict=True)
        ]
        self._library.run_draw(
            TgDraw(
                rows=(TgDrawRow * len(structs))(*structs),
                token_ids=drawn.data_ptr(),
                m=len(structs),
                n=_num_tokens(rows),
            )
        )
        token_ids: list[int] = drawn.tolist()
        if NO_MEMORY in token_ids:
            raise MemoryError("a thread of the CPU kernels got no memory to draw a token in")
        return token_ids

    def logprobs(self, rows: Sequence[Row], token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
        num_tokens = _num_tokens(rows)
        nums = [min(num, num_tokens) for num in num_top]
        logprobs = torch.empty(len(rows))
        top_ids = torch.empty(len(rows), max(nums, default=0), dtype=torch.int64)
        top_logprobs = torch.empty(top_ids.shape)
        structs = [
            TgLogprobsRow(x=_address(row.logits), token_id=token_id, num_top=num, maximum=row.maximum)
            for row, token_id, num in zip(rows, token_ids, nums, strict=True)
        ]
        self._library.run_logprobs(
            TgLogprobs(
                rows=(TgLogprobsRow * len(structs))(*structs),
                logprobs=logprobs.data_ptr(),
                top_ids=top_ids.data_ptr(),
                top_logprobs=top_logprobs.data_ptr(),
                m=len(structs),
                n=num_tokens,
                top_stride=top_ids.shape[1],
            )
        )
        if bool(logprobs.isnan().any()):
            raise MemoryError("a thread of the CPU kernels got no memory to find the most probable tokens in")
        return [
            TokenLogprobs(drawn, tuple(zip(ids[:num], values[:num], strict=True)))
            for drawn, ids, values, num in zip(
                logprobs.tolist(), top_ids.tolist(), top_logprobs.tolist(), nums, strict=True
            )
        ]


def _num_tokens(rows: Sequence[Row]) -> int:
    return len(rows[0].logits) if rows else 0


def _address(logits: Tensor) -> int:
    assert logits.dtype == torch.float32, "the library reads fp32"
    assert logits.stride(0) == 1, "the library reads numbers that lie side by side"
    return logits.data_ptr()
