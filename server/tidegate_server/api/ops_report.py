"""What the ops port says of the pod: decided from values, so that every answer can be tested without a server."""

from dataclasses import dataclass

from tidegate_contract.admin import LoadReport, ServerState
from tidegate_server.engine.progress_watch import patience_s, standstill
from tidegate_server.engine.snapshot import EngineSnapshot
from tidegate_server.metrics import BuildFacts

# The event loop shows itself once a second; garbage collection or a huge body may hold it up for a moment.
MAX_LOOP_AGE_S = 30.0


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    ok: bool
    reason: str  # for people: `kubectl describe` shows it with the failed probe


@dataclass(frozen=True, slots=True)
class PodView:
    """Everything the answers depend on, at one moment."""

    state: ServerState
    because: str
    snapshot: EngineSnapshot
    loop_beat_s: float  # CLOCK_MONOTONIC
    now_s: float

    @property
    def progress_age_s(self) -> float:
        return max(0.0, self.now_s - self.snapshot.progress_at_s) if self.snapshot.progress_at_s else 0.0

    @property
    def loop_age_s(self) -> float:
        return max(0.0, self.now_s - self.loop_beat_s)


def startup_answer(view: PodView) -> ProbeAnswer:
    """Has the pod ever become ready? A failed one has not, so that its reason is seen."""
    return ProbeAnswer(view.state in (ServerState.READY, ServerState.DRAINING), view.because)


def ready_answer(view: PodView) -> ProbeAnswer:
    """May new requests be sent here?"""
    if view.state is not ServerState.READY:
        return ProbeAnswer(False, view.because)
    return live_answer(view)


def live_answer(view: PodView) -> ProbeAnswer:
    """Does the pod make progress? Loading weights counts: the startup probe is what limits it."""
    if view.state is ServerState.FAILED:
        return ProbeAnswer(False, view.because)
    if view.loop_age_s > MAX_LOOP_AGE_S:
        return ProbeAnswer(False, f"the API's event loop has been stuck for {view.loop_age_s:.0f} s")
    if view.state is not ServerState.STARTING and view.progress_age_s > patience_s(view.snapshot):
        return ProbeAnswer(False, standstill(view.snapshot, view.progress_age_s))
    return ProbeAnswer(True, view.because)


def load_report(view: PodView, model_name: str, facts: BuildFacts) -> LoadReport:
    seen = view.snapshot
    return LoadReport(
        model=model_name,
        state=view.state,
        step=seen.step,
        since_progress_s=round(view.progress_age_s, 3),
        num_running=seen.num_running,
        num_waiting=seen.num_waiting,
        waiting_prompt_tokens=seen.waiting_prompt_tokens,
        kv_tokens_in_use=seen.kv_blocks_live * seen.block_size,
        kv_tokens_capacity=seen.kv_blocks_total * seen.block_size,
        kv_blocks_free=seen.kv_blocks_free,
        kv_blocks_live=seen.kv_blocks_live,
        kv_blocks_cached=seen.kv_blocks_cached,
        kv_blocks_total=seen.kv_blocks_total,
        kv_blocks_pending=seen.kv_blocks_pending,
        block_size=seen.block_size or facts.block_size,
        max_num_seqs=seen.max_num_seqs,
        queue_time_p90_s=seen.queue_time_p90_s,
        queue_delay_predicted_s=round(seen.queue_delay_predicted_s, 3),
        ttft_predicted_s=round(seen.ttft_predicted_s, 3),
        prediction_error_ratio=round(seen.prediction_error_ratio, 3),
        num_preemptions_total=seen.num_preemptions,
        num_requests_total=seen.num_requests,
        version=facts.version,
        device=facts.device,
        dtype=facts.dtype,
        kernels=facts.kernels,
        exact=facts.exact,
        inexact_ops=facts.inexact_ops,
    )
