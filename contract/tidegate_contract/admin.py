"""Wire types of a pod's ops port: what `/load` answers, and what `/drain` and `/recording` take and answer."""

from enum import StrEnum

import msgspec


class ServerState(StrEnum):
    """Where a pod is in its life, as its ops port tells it."""

    STARTING = "starting"  # loading weights; not ready
    READY = "ready"  # takes requests
    DRAINING = "draining"  # refuses new requests, finishes the running ones; not ready
    FAILED = "failed"  # the engine is gone or makes no progress; not live


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's load at one moment, cheap enough to be read every 50 ms.

    Everything counted in tokens is KV-cache tokens. Durations are seconds. Unknown fields are ignored by the reader, so
    a pod may be newer than its operator; fields with defaults may be missing, so it may be older.
    """

    model: str
    state: ServerState
    step: int  # steps the engine has run since it started
    since_progress_s: float  # age of the last step, or of the last idle tick
    num_running: int  # requests that hold blocks
    num_waiting: int  # requests that hold none: new and preempted ones
    waiting_prompt_tokens: int  # tokens that the waiting requests still have to compute
    kv_tokens_in_use: int  # live blocks x block size
    kv_tokens_capacity: int
    kv_blocks_free: int
    kv_blocks_live: int
    kv_blocks_cached: int
    kv_blocks_total: int  # free + live + cached + pending; the null block is not counted
    kv_blocks_pending: int = 0
    block_size: int = 16
    max_num_seqs: int = 1
    queue_time_p90_s: float = 0.0  # over 15 s, the ages of those still waiting included
    queue_delay_predicted_s: float = 0.0  # that a request would queue which arrived now
    ttft_predicted_s: float = 0.0  # until its first token, for a prompt of average length
    prediction_error_ratio: float = 0.0  # how far off recent predictions of that were: 0, exact, to 1
    num_preemptions_total: int = 0
    num_requests_total: int = 0  # taken in since the start
    version: str = ""  # of the server
    device: str = ""
    dtype: str = ""
    kernels: str = ""  # "cpu-" and the instruction set of the kernels in C, "torch" or "triton"
    exact: bool | None = None  # whether rows kept their bits in any batch when the start tried; null: not tried
    inexact_ops: tuple[str, ...] = ()  # those whose rows did not


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks a pod to refuse new requests and to exit once the running ones are done."""

    timeout_s: float | None = None  # after which it exits anyway; None: the pod's own setting


class DrainReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod answers to a drain call; asking twice is harmless."""

    state: ServerState
    num_unfinished: int


class RecordingReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod answers when it is asked to write its engine's last steps to a file."""

    path: str  # in the pod; the file is there once the step that runs is done
