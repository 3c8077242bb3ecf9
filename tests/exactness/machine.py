"""Whether this machine's matrix library lets attention keep its bits; docs/exactness.md says where it may not."""

import torch

from tidegate_kernels.ops import select_ops
from tidegate_server.model.config import ModelConfig

NUM_TOKENS = 300  # more than one span of keys
BLOCK_SIZE = 16


def attention_keeps_bits(config: ModelConfig) -> bool:
    """Whether a prompt cut into chunks of many lengths gets the bits that it gets at once."""
    generator = torch.Generator().manual_seed(0)
    num_blocks = -(-NUM_TOKENS // BLOCK_SIZE)
    cache = torch.randn(num_blocks + 1, 2, config.num_kv_heads, BLOCK_SIZE, config.head_dim, generator=generator)
    query = torch.randn(NUM_TOKENS, config.num_q_heads, config.head_dim, generator=generator)
    attend = select_ops("cpu").paged_attention

    def attended(start: int, stop: int) -> torch.Tensor:
        return attend(
            query[start:stop],
            cache,
            torch.arange(1, num_blocks + 1, dtype=torch.int32).unsqueeze(0),
            torch.tensor([0, stop - start], dtype=torch.int32),
            torch.tensor([stop], dtype=torch.int32),
            config.attention_scale,
        )

    at_once = attended(0, NUM_TOKENS)
    cuts = [(start, start + 1) for start in range(NUM_TOKENS)]
    cuts += [(start, start + length) for length in (2, 5, 17, 32, 40, 64, 100) for start in range(0, 200, 29)]
    return all(torch.equal(attended(start, stop), at_once[start:stop]) for start, stop in cuts)
