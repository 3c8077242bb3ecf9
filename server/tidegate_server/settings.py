"""Everything a pod can be told: flags of `tidegate serve`, each also an environment variable."""

from dataclasses import dataclass
from enum import Enum


class PreemptionMode(str, Enum):
    """What a preempted request gives up; more ways come with the swap tier."""

    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the engine process needs; crosses to it pickled."""

    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: cuda when torch sees a device."""
    dtype: str = "auto"
    """`float32`, `bfloat16`, `float16`, or `auto`: float32 on a CPU, the checkpoint's own on a GPU."""
    max_model_len: int | None = None
    """Tokens of prompt and output together; None: what the checkpoint was trained for."""
    max_num_seqs: int = 64
    """Most requests that hold blocks at once."""
    max_num_batched_tokens: int = 512
    """Most tokens that one step computes."""
    block_size: int = 16
    """Tokens per KV block; a power of two."""
    kv_cache_memory_bytes: int | None = None
    """Memory for KV blocks; None: a share of what is free (GPU), or 1 GiB at most (CPU)."""
    num_kv_blocks: int | None = None
    """Number of KV blocks; given instead of the memory."""
    prefix_caching: bool = True
    preemption_mode: PreemptionMode = PreemptionMode.RECOMPUTE
    seed: int = 0
    """Root of the seeds drawn for requests that bring none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The whole of `tidegate serve`."""

    engine: EngineSettings
    model_uri: str = "builtin://smollm2-135m-instruct"
    served_model_name: str | None = None
    """The name clients ask for; None: the model's own."""
    host: str = "0.0.0.0"
    port: int = 8000
    ops_port: int = 9000
    log_format: str = "text"
    """`text` or `json`."""
    drain_notice_s: float = 5.0
    """After SIGTERM, how long new requests are still taken while endpoints catch up."""
    drain_timeout_s: float = 120.0
    """After the notice, how long running requests may take to finish."""
