"""Every metric a pod or the operator exports: its name, kind, unit (in the name), labels and meaning."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class MetricKind(Enum):
    COUNTER = auto()  # the exposed name ends in `_total`
    GAUGE = auto()
    HISTOGRAM = auto()
    INFO = auto()  # a gauge that is always 1; its labels carry the facts


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as a scrape shows it; `name` is the exposed name, of a histogram without `_bucket`."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


# Queue times start at 5 ms: below it a request was simply taken by the next step.
QUEUE_TIME_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
TTFT_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
TOKEN_TIME_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
E2E_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
TOKEN_COUNT_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)

MODEL_LABEL: Final = "model_name"
_MODEL: Final = (MODEL_LABEL,)
_G, _C, _H, _I = MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.HISTOGRAM, MetricKind.INFO

# Why a request ended: `outcome` of tidegate_requests_total, `finished_reason` of vllm:request_success_total.
FINISHED_REASONS: Final = ("stop", "length", "abort", "error")
OUTCOMES: Final = (*FINISHED_REASONS, "refused")

# `prediction` of tidegate_prediction_error_ratio.
PREDICTED_QUEUE_DELAY: Final = "queue_delay"
PREDICTED_STEP_TIME: Final = "step_time"

# Why a request was not admitted: `reason` of tidegate_admission_refused_total.
NEVER_FITS: Final = "never_fits"  # the prompt and one more token are more than the context or the KV cache
QUEUE_FULL: Final = "queue_full"
DEADLINE: Final = "deadline"  # it waited too long, and nothing of it was computed
STARTING: Final = "starting"
DRAINING: Final = "draining"
FAILED: Final = "failed"
REFUSAL_REASONS: Final = (NEVER_FITS, QUEUE_FULL, DEADLINE, STARTING, DRAINING, FAILED)

# `state` of tidegate_kv_blocks.
KV_BLOCK_STATES: Final = ("free", "live", "cached", "pending", "swapped")

# `kind` and `reason` of tidegate_preemptions_total.
PREEMPTION_KINDS: Final = ("recompute", "swap", "tail")
PREEMPTION_REASONS: Final = ("blocks", "seats", "forced")

# `result` of tidegate_prefix_cache_tokens_total; a host hit was found in host memory.
PREFIX_RESULTS: Final = ("hit", "host_hit", "miss", "recomputed")

# `kind` of tidegate_step_tokens.
PREFILL: Final = "prefill"
DECODE: Final = "decode"
STEP_TOKEN_KINDS: Final = (PREFILL, DECODE)

# `verdict` of tidegate_exactness.
EXACT: Final = "exact"
INEXACT: Final = "inexact"
NOT_PROBED: Final = "not_probed"
VERDICTS: Final = (EXACT, INEXACT, NOT_PROBED)

# `direction` of tidegate_swap_bytes_total, as seen from the device.
SWAP_OUT: Final = "out"
SWAP_IN: Final = "in"
# What went wrong: `kind` of tidegate_faults_total.
FAULT_KINDS: Final = ("request", "bad_logits", "out_of_memory", "step", "copy", "hung_step")

REQUESTS_RUNNING: Final = Metric("tidegate_requests_running", _G, "Requests that hold KV blocks.", _MODEL)
REQUESTS_WAITING: Final = Metric("tidegate_requests_waiting", _G, "Requests that wait for KV blocks.", _MODEL)
WAITING_PROMPT_TOKENS: Final = Metric(
    "tidegate_waiting_prompt_tokens", _G, "Tokens that the waiting requests still have to compute.", _MODEL
)
KV_BLOCKS: Final = Metric(
    "tidegate_kv_blocks", _G, "KV blocks by state; swapped ones are in host memory.", (MODEL_LABEL, "state")
)
KV_BLOCKS_CAPACITY: Final = Metric(
    "tidegate_kv_blocks_capacity", _G, "KV blocks of the device: free, live, cached and pending ones.", _MODEL
)
KV_USAGE_RATIO: Final = Metric("tidegate_kv_usage_ratio", _G, "Live share of the KV blocks, 0 to 1.", _MODEL)
PREEMPTIONS: Final = Metric(
    "tidegate_preemptions_total", _C, "Requests that lost their blocks.", (MODEL_LABEL, "kind", "reason")
)
SWAP_BYTES: Final = Metric(
    "tidegate_swap_bytes_total", _C, "Bytes of KV blocks copied to host memory and back.", (MODEL_LABEL, "direction")
)
THRASH_LEVEL: Final = Metric(
    "tidegate_thrash_level",
    _G,
    "Share of the tokens handled lately that preemptions made the engine compute or copy again, 0 to 1.",
    _MODEL,
)
AUDIT_REPAIRS: Final = Metric(
    "tidegate_audit_repairs_total", _C, "KV blocks whose books an audit found wrong and put right.", _MODEL
)
PREFIX_CACHE_TOKENS: Final = Metric(
    "tidegate_prefix_cache_tokens_total",
    _C,
    "Prompt tokens by what the prefix cache knew of them at first, and tokens computed again after a preemption.",
    (MODEL_LABEL, "result"),
)
PROMPT_TOKENS: Final = Metric("tidegate_prompt_tokens_total", _C, "Prompt tokens of requests taken in.", _MODEL)
OUTPUT_TOKENS: Final = Metric("tidegate_output_tokens_total", _C, "Tokens sent to clients.", _MODEL)
REQUESTS: Final = Metric("tidegate_requests_total", _C, "Requests by how they ended.", (MODEL_LABEL, "outcome"))
ADMISSION_REFUSED: Final = Metric(
    "tidegate_admission_refused_total", _C, "Requests that were not admitted, by why.", (MODEL_LABEL, "reason")
)
STEPS: Final = Metric("tidegate_engine_steps_total", _C, "Steps of the engine loop.", _MODEL)
STEP_TIME: Final = Metric("tidegate_step_duration_seconds", _H, "Time of one engine step.", _MODEL, TOKEN_TIME_BUCKETS)
STEP_TOKENS: Final = Metric(
    "tidegate_step_tokens",
    _H,
    "Tokens of one kind in the steps that had any.",
    (MODEL_LABEL, "kind"),
    TOKEN_COUNT_BUCKETS,
)
QUEUE_TIME: Final = Metric(
    "tidegate_queue_time_seconds", _H, "Arrival to the first step that computed.", _MODEL, QUEUE_TIME_BUCKETS
)
QUEUE_DELAY_PREDICTED: Final = Metric(
    "tidegate_queue_delay_predicted_seconds", _G, "What a request that arrived now would queue.", _MODEL
)
PREDICTION_ERROR: Final = Metric(
    "tidegate_prediction_error_ratio",
    _G,
    "How far off the recent predictions were, relative to the longer of predicted and measured: 0 to 1.",
    (MODEL_LABEL, "prediction"),
)
TTFT: Final = Metric("tidegate_time_to_first_token_seconds", _H, "Arrival to first token sent.", _MODEL, TTFT_BUCKETS)
ITL: Final = Metric("tidegate_inter_token_latency_seconds", _H, "Gap between two tokens.", _MODEL, TOKEN_TIME_BUCKETS)
TPOT: Final = Metric(
    "tidegate_time_per_output_token_seconds",
    _H,
    "(last - first) / (output tokens - 1) of one request.",
    _MODEL,
    TOKEN_TIME_BUCKETS,
)
E2E_LATENCY: Final = Metric("tidegate_request_latency_seconds", _H, "Arrival to last token sent.", _MODEL, E2E_BUCKETS)
PROMPT_LENGTH: Final = Metric("tidegate_prompt_length_tokens", _H, "Prompt length.", _MODEL, TOKEN_COUNT_BUCKETS)
OUTPUT_LENGTH: Final = Metric("tidegate_output_length_tokens", _H, "Output length.", _MODEL, TOKEN_COUNT_BUCKETS)
FAULTS: Final = Metric("tidegate_faults_total", _C, "Faults of the engine, by what they are.", (MODEL_LABEL, "kind"))
SERVER_STATE: Final = Metric(
    "tidegate_server_state", _G, "1 for the state the pod is in, 0 for the others.", (MODEL_LABEL, "state")
)
BUILD_INFO: Final = Metric(
    "tidegate_build_info", _I, "Always 1; what is running.", (MODEL_LABEL, "version", "device", "dtype", "kernels")
)
EXACTNESS: Final = Metric(
    "tidegate_exactness",
    _G,
    "1 for what the start found when it tried if batches change a row's bits, 0 for the others.",
    (MODEL_LABEL, "verdict"),
)

SERVER_METRICS: Final = (
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
    WAITING_PROMPT_TOKENS,
    KV_BLOCKS,
    KV_BLOCKS_CAPACITY,
    KV_USAGE_RATIO,
    PREEMPTIONS,
    SWAP_BYTES,
    THRASH_LEVEL,
    AUDIT_REPAIRS,
    PREFIX_CACHE_TOKENS,
    PROMPT_TOKENS,
    OUTPUT_TOKENS,
    REQUESTS,
    ADMISSION_REFUSED,
    STEPS,
    STEP_TIME,
    STEP_TOKENS,
    QUEUE_TIME,
    QUEUE_DELAY_PREDICTED,
    PREDICTION_ERROR,
    TTFT,
    ITL,
    TPOT,
    E2E_LATENCY,
    PROMPT_LENGTH,
    OUTPUT_LENGTH,
    FAULTS,
    SERVER_STATE,
    BUILD_INFO,
    EXACTNESS,
)

# The names that gateways and dashboards made for vLLM scrape, with vLLM's labels and meanings.
ENGINE_LABEL: Final = "engine"
ENGINE: Final = "0"  # vLLM counts its data-parallel engines; a pod has one
_VLLM: Final = (MODEL_LABEL, ENGINE_LABEL)
VLLM_REQUESTS_RUNNING: Final = Metric("vllm:num_requests_running", _G, REQUESTS_RUNNING.help, _VLLM)
VLLM_REQUESTS_WAITING: Final = Metric("vllm:num_requests_waiting", _G, REQUESTS_WAITING.help, _VLLM)
VLLM_KV_CACHE_USAGE: Final = Metric("vllm:kv_cache_usage_perc", _G, KV_USAGE_RATIO.help, _VLLM)
VLLM_PREFIX_CACHE_QUERIES: Final = Metric(
    "vllm:prefix_cache_queries_total", _C, "Prompt tokens looked up in the prefix cache.", _VLLM
)
VLLM_PREFIX_CACHE_HITS: Final = Metric(
    "vllm:prefix_cache_hits_total", _C, "Prompt tokens found in the prefix cache.", _VLLM
)
VLLM_PREEMPTIONS: Final = Metric("vllm:num_preemptions_total", _C, PREEMPTIONS.help, _VLLM)
VLLM_PROMPT_TOKENS: Final = Metric("vllm:prompt_tokens_total", _C, PROMPT_TOKENS.help, _VLLM)
VLLM_GENERATION_TOKENS: Final = Metric("vllm:generation_tokens_total", _C, OUTPUT_TOKENS.help, _VLLM)
VLLM_TTFT: Final = Metric("vllm:time_to_first_token_seconds", _H, TTFT.help, _VLLM, TTFT_BUCKETS)
VLLM_ITL: Final = Metric("vllm:inter_token_latency_seconds", _H, ITL.help, _VLLM, TOKEN_TIME_BUCKETS)
VLLM_E2E_LATENCY: Final = Metric("vllm:e2e_request_latency_seconds", _H, E2E_LATENCY.help, _VLLM, E2E_BUCKETS)
VLLM_QUEUE_TIME: Final = Metric("vllm:request_queue_time_seconds", _H, QUEUE_TIME.help, _VLLM, QUEUE_TIME_BUCKETS)
VLLM_REQUEST_SUCCESS: Final = Metric(
    "vllm:request_success_total", _C, "Requests by why they ended.", (*_VLLM, "finished_reason")
)
VLLM_CACHE_CONFIG_INFO: Final = Metric(
    "vllm:cache_config_info",
    _I,
    "Always 1; the shape of the KV cache.",
    (*_VLLM, "block_size", "num_gpu_blocks", "enable_prefix_caching", "cache_dtype"),
)

VLLM_METRICS: Final = (
    VLLM_REQUESTS_RUNNING,
    VLLM_REQUESTS_WAITING,
    VLLM_KV_CACHE_USAGE,
    VLLM_PREFIX_CACHE_QUERIES,
    VLLM_PREFIX_CACHE_HITS,
    VLLM_PREEMPTIONS,
    VLLM_PROMPT_TOKENS,
    VLLM_GENERATION_TOKENS,
    VLLM_TTFT,
    VLLM_ITL,
    VLLM_E2E_LATENCY,
    VLLM_QUEUE_TIME,
    VLLM_REQUEST_SUCCESS,
    VLLM_CACHE_CONFIG_INFO,
)

# The operator's own; `result` is one of RECONCILE_RESULTS, `direction` one of SCALE_DIRECTIONS.
RECONCILE_RESULTS: Final = ("ok", "retry", "bug")
SCALE_DIRECTIONS: Final = ("up", "down")

OPERATOR_RECONCILES: Final = Metric("tidegate_operator_reconciles_total", _C, "Passes over one resource.", ("result",))
OPERATOR_RECONCILE_TIME: Final = Metric(
    "tidegate_operator_reconcile_seconds",
    _H,
    "Time of one pass.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 15),
)
OPERATOR_QUEUE_DEPTH: Final = Metric("tidegate_operator_queue_depth", _G, "Resources waiting for or in a pass.")
OPERATOR_IS_LEADER: Final = Metric("tidegate_operator_is_leader", _G, "1 while this replica holds the lease.")
OPERATOR_SCALINGS: Final = Metric("tidegate_operator_scalings_total", _C, "Changes of replicas.", ("direction",))

OPERATOR_METRICS: Final = (
    OPERATOR_RECONCILES,
    OPERATOR_RECONCILE_TIME,
    OPERATOR_QUEUE_DEPTH,
    OPERATOR_IS_LEADER,
    OPERATOR_SCALINGS,
)
