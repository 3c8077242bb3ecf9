"""What the API process and the engine process say to each other; encoded with msgspec, one message a step."""

from enum import StrEnum

import msgspec

from tidegate_server.engine.preemption_kind import PreemptionKind, PreemptionReason
from tidegate_server.engine.sampling_params import SamplingParams


class FinishReason(StrEnum):
    """Why a request ended, in OpenAI's words where it has one."""

    STOP = "stop"  # an end token, or (decided by the API process) a stop string
    LENGTH = "length"  # max_tokens, or the model's context
    ABORT = "abort"  # the client left, or the server shut down
    ERROR = "error"  # this request failed; nobody else noticed


# API process to engine process.


class AddRequest(msgspec.Struct, frozen=True, kw_only=True, tag="add"):
    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    arrival_s: float  # CLOCK_MONOTONIC, one clock for all processes of the pod
    priority: int = 0  # lower is served first
    cache_salt: str = ""  # requests share prefix-cache blocks only within one salt
    leader_id: str = ""  # of a request with the same prompt, sent before: the prompt is computed once for both
    tenant: str = ""  # whose share of the engine this takes
    deadline_s: float | None = None  # CLOCK_MONOTONIC; not begun by then, it is given up


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    request_id: str  # unknown and finished ones are ignored: abort is idempotent


class AuditBlocks(msgspec.Struct, frozen=True, kw_only=True, tag="audit"):
    """Recount every KV block now; what is wrong is repaired, logged and counted."""


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="shutdown"):
    """Stop after the step that runs; whatever is unfinished ends with `abort`."""


class WriteRecording(msgspec.Struct, frozen=True, kw_only=True, tag="record"):
    """Write the last steps to a file, between two steps; whether that went well is in the log."""

    path: str


Command = AddRequest | AbortRequest | AuditBlocks | WriteRecording | Shutdown


# Engine process to API process.


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The weights are loaded and the cache is allocated; what the API process must know of it."""

    max_model_len: int  # tokens, prompt and output together
    num_kv_blocks: int
    block_size: int
    vocab_size: int
    device: str
    dtype: str
    kernels: str  # "cpu-" and the instruction set of the kernels in C, "torch" or "triton"
    load_time_s: float
    exact: bool | None = None  # what the start-up probe found; None: not probed
    inexact_ops: tuple[str, ...] = ()  # what gave rows other bits in another batch
    eos_token_ids: tuple[int, ...] = ()
    lowered_from: int | None = None  # the model's own context, when the KV blocks could not hold it


class EngineFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The engine process gives up; it exits after sending this."""

    reason: str  # one line for the log and the pod's termination message
    code: str  # a word for the operator, such as ModelNotFound
    flag: str | None = None  # with InvalidSetting: the flag to change; `reason` then says why


class EngineStopped(msgspec.Struct, frozen=True, kw_only=True, tag="stopped"):
    """The last message after `Shutdown`; the process exits after sending this."""


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step gave one request. An end token is the last of `token_ids`, beside FinishReason.STOP."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()  # one per token id, when asked for
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()  # per token id: (token id, log-probability)
    finish_reason: FinishReason | None = None
    error: str | None = None  # with FinishReason.ERROR
    refused: bool = False  # with FinishReason.ERROR: the request can never run, and `error` says what to change
    overloaded: bool = False  # with FinishReason.ERROR: the queue was full, and the request was not taken in
    timed_out: bool = False  # with FinishReason.ERROR: its deadline passed while it waited, and nothing was computed
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache at first admission
    queue_time_s: float | None = None  # with the first output only: arrival to the first step that computed
    num_preemptions: int = 0


class PreemptionCount(msgspec.Struct, frozen=True):
    """How many requests lost their blocks in one way for one reason."""

    kind: PreemptionKind
    reason: PreemptionReason
    count: int


class StepOutput(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    step: int
    outputs: tuple[RequestOutput, ...]
    step_time_s: float
    num_prefill_tokens: int = 0  # computed by this step; padding counts
    num_decode_tokens: int = 0
    preemptions: tuple[PreemptionCount, ...] = ()  # since the message before

    @property
    def num_new_tokens(self) -> int:
        """0: no forward pass, only requests refused or aborted."""
        return self.num_prefill_tokens + self.num_decode_tokens


EngineMessage = EngineReady | EngineFailed | EngineStopped | StepOutput
