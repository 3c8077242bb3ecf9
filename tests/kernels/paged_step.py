"""One step's attention inputs over a paged cache, and the same keys and values laid out plainly."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

CPU = torch.device("cpu")
NUM_LAYERS = 2
LAYER = 1  # not the first: a kernel that ignores strides would read another layer's NaN


@dataclass(frozen=True, slots=True)
class Shape:
    """Numbers of a model, and of its cache."""

    num_q_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 16
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True)
class PagedStep:
    """What `paged_attention` takes; `keys` and `values` are each request's, `[context_len, num_kv_heads, head_dim]`."""

    query: Tensor
    kv_cache: Tensor
    block_table: Tensor
    query_start: Tensor
    context_len: Tensor
    scale: float
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]:
        return self.query, self.kv_cache, self.block_table, self.query_start, self.context_len, self.scale

    def queries_of(self, request: int) -> slice:
        return slice(int(self.query_start[request]), int(self.query_start[request + 1]))

    def alone(self, request: int) -> "PagedStep":
        """The same request in a step of its own."""
        tokens = self.queries_of(request)
        return replace(
            self,
            query=self.query[tokens],
            block_table=self.block_table[request : request + 1],
            query_start=torch.tensor([0, tokens.stop - tokens.start], dtype=torch.int32, device=self.query.device),
            context_len=self.context_len[request : request + 1],
        )

    def last_queries(self, num_queries: int) -> "PagedStep":
        """The step of a single request that computes only the end of it, as if the rest had been cached."""
        assert len(self.context_len) == 1
        return replace(
            self,
            query=self.query[-num_queries:],
            query_start=torch.tensor([0, num_queries], dtype=torch.int32, device=self.query.device),
        )

    def first_queries(self, num_queries: int) -> "PagedStep":
        """The step of a single request that computes all but its end, a later chunk's keys not yet there."""
        assert len(self.context_len) == 1
        missing = len(self.query) - num_queries
        return replace(
            self,
            query=self.query[:num_queries],
            query_start=torch.tensor([0, num_queries], dtype=torch.int32, device=self.query.device),
            context_len=self.context_len - missing,
        )


def paged_step(requests: Sequence[tuple[int, int]], shape: Shape, device: torch.device = CPU) -> PagedStep:
    """A step for requests given as (context length, new tokens); every slot that no token fills holds NaN."""
    num_blocks = [-(-length // shape.block_size) for length, _ in requests]
    total = sum(num_blocks) + 1  # and the null block
    cache = torch.full(
        (total, NUM_LAYERS, 2, shape.num_kv_heads, shape.block_size, shape.head_dim), torch.nan, dtype=shape.dtype
    )
    layer = cache[:, LAYER]
    table = torch.zeros(len(requests), max(num_blocks), dtype=torch.int32)
    block_ids = iter((torch.randperm(total - 1) + 1).tolist())
    keys, values = [], []
    for r, (length, _) in enumerate(requests):
        table[r, : num_blocks[r]] = torch.tensor([next(block_ids) for _ in range(num_blocks[r])])
        key, value = torch.randn(2, length, shape.num_kv_heads, shape.head_dim).to(shape.dtype)
        position = torch.arange(length)
        block, offset = table[r, position // shape.block_size].long(), position % shape.block_size
        layer[block, 0, :, offset] = key
        layer[block, 1, :, offset] = value
        keys.append(key)
        values.append(value)
    num_new = torch.tensor([0, *(new for _, new in requests)])
    fused = torch.randn(int(num_new.sum()), shape.num_q_heads + 2 * shape.num_kv_heads, shape.head_dim).to(shape.dtype)
    return PagedStep(
        query=fused.to(device)[:, : shape.num_q_heads],  # strided, as the fused projection leaves it
        kv_cache=cache.to(device)[:, LAYER],
        block_table=table.to(device),
        query_start=num_new.cumsum(0).to(torch.int32).to(device),
        context_len=torch.tensor([length for length, _ in requests], dtype=torch.int32, device=device),
        scale=shape.head_dim**-0.5,
        keys=tuple(keys),
        values=tuple(values),
    )
