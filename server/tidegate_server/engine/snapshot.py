"""The engine's state in numbers: what the step loop writes to the heartbeat page and the ops port reads from it."""

from dataclasses import dataclass

from tidegate_contract.admin import ServerState


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """One moment of the engine. Counters count since the engine process started; times are CLOCK_MONOTONIC seconds."""

    state: ServerState = ServerState.STARTING
    step: int = 0
    progress_at_s: float = 0.0  # last time a step began or ended, or an idle tick
    step_bound_s: float = 0.0  # while `step` runs: after so long it counts as hung; 0 between steps
    step_num_requests: int = 0  # while `step` runs: in it
    step_num_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0
    waiting_prompt_tokens: int = 0
    kv_blocks_free: int = 0
    kv_blocks_live: int = 0
    kv_blocks_cached: int = 0
    kv_blocks_pending: int = 0
    kv_blocks_total: int = 0
    host_blocks_held: int = 0  # by swapped requests
    host_blocks_cached: int = 0  # kept for prefix hits
    host_blocks_total: int = 0
    block_size: int = 0
    max_num_seqs: int = 0
    queue_time_p90_s: float = 0.0  # over 15 s, ages of those still waiting included
    queue_delay_predicted_s: float = 0.0  # that a request would queue which arrived now
    ttft_predicted_s: float = 0.0  # until its first token, for a prompt of average length
    prediction_error_ratio: float = 0.0  # of the recent predictions of that, 0 to 1
    step_time_error_ratio: float = 0.0  # of the recent steps' predicted times, 0 to 1
    num_preemptions: int = 0
    swapped_out_bytes: int = 0  # of KV blocks, to host memory
    swapped_in_bytes: int = 0
    thrash_level: float = 0.0  # share of the work that preemptions caused to be done again, 0 to 1
    num_requests: int = 0
    prefix_miss_tokens: int = 0  # prompt tokens found nowhere
    prefix_hit_tokens: int = 0  # found on the device
    prefix_host_hit_tokens: int = 0  # found in host memory
    recomputed_tokens: int = 0  # computed again after a preemption
    num_audit_repairs: int = 0
    faults_request: int = 0  # by kind, see `engine.faults`
    faults_bad_logits: int = 0
    faults_out_of_memory: int = 0
    faults_step: int = 0
    faults_copy: int = 0

    @property
    def is_stepping(self) -> bool:
        return self.step_bound_s > 0
