"""A runner that computes nothing: what is left of a step is the scheduler's own work."""

from dataclasses import dataclass

from tidegate_server.engine.batch import NO_COPIES, Batch, BlockCopies, SampledToken
from tidegate_server.engine.exactness import Exactness

_TOKEN_ID = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRunner:
    """Satisfies `tidegate_server.engine.batch.LoadedRunner`; every token that it draws is the same one."""

    num_kv_blocks: int
    num_host_blocks: int = 0
    max_model_len: int = 8192
    lowered_from: int | None = None
    block_size: int = 16
    block_bytes: int = 1
    swap_bytes_per_s: float = 0.0
    vocab_size: int = 49152
    eos_token_ids: tuple[int, ...] = ()
    device: str = "none"
    dtype: str = "none"
    kernels: str = "none"
    exactness: Exactness | None = None

    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        return tuple(
            SampledToken(share.request_id, _TOKEN_ID) for share in batch.scheduled if share.sampling is not None
        )

    def copy_blocks(self, copies: BlockCopies) -> BlockCopies:
        return NO_COPIES
