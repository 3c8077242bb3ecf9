"""How long requests will queue, as the engine predicts it, and how far off that was."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidegate_server.engine.batch import Batch, RequestId, ScheduledRequest
from tidegate_server.engine.messages import AddRequest, RequestOutput
from tidegate_server.engine.moving_average import MovingAverage
from tidegate_server.engine.predict import QueueState, RunningRequest, queue_delay_s, ttft_s
from tidegate_server.engine.scheduler import SchedulerConfig
from tidegate_server.engine.scheduling import StepScheduler
from tidegate_server.engine.step_budget import StepBudget
from tidegate_server.engine.step_time import StepShape

_HORIZON: Final = 50  # requests


@dataclass(frozen=True, slots=True)
class Prediction:
    """Made when a request reached the engine."""

    delay_s: float  # that it would still queue
    age_s: float  # that it had waited by then, mostly for a step to end


class QueueForecast:
    """Predicts from what it is told of each arrival and each step, and compares when a request's first token is there.

    What runs is read from the batches: whoever holds blocks was in one, and all who decode are in every one.
    """

    def __init__(self, scheduler: StepScheduler, config: SchedulerConfig, budget: StepBudget) -> None:
        self._scheduler = scheduler
        self._config = config
        self._budget = budget
        self._open: set[str] = set()  # requests that the scheduler took and that have not ended
        self._shares: dict[RequestId, ScheduledRequest] = {}  # the latest of each request that holds blocks
        self._predictions: dict[str, Prediction] = {}  # of requests without a token
        self._prompt_tokens = MovingAverage(_HORIZON)
        self._output_tokens = MovingAverage(_HORIZON)
        self._error = MovingAverage(_HORIZON)

    @property
    def error_ratio(self) -> float:
        """How far off the recent predictions were, relative to the longer of predicted and measured: 0 to 1."""
        return self._error.value

    def next_delay_s(self) -> float:
        """Seconds that a request would queue which arrived now, with a prompt of average length."""
        return queue_delay_s(self.state(), round(self._prompt_tokens.value), self._budget)

    def next_ttft_s(self) -> float:
        """Seconds until the first token of a request that arrived now, with a prompt of average length."""
        return ttft_s(self.state(), round(self._prompt_tokens.value), self._budget)

    def predict(self, request: AddRequest, now: float) -> Prediction:
        """How long a request will queue which the scheduler does not know yet."""
        delay_s = queue_delay_s(self.state(), len(request.prompt_token_ids), self._budget)
        return Prediction(delay_s, age_s=max(0.0, now - request.arrival_s))

    def arrived(self, request: AddRequest, prediction: Prediction) -> None:
        """The scheduler has taken the request."""
        self._prompt_tokens.add(len(request.prompt_token_ids))
        self._predictions[request.request_id] = prediction
        self._open.add(request.request_id)

    def stepped(self, batch: Batch, outputs: Iterable[RequestOutput], step_time_s: float) -> None:
        """A step is over, and this is what it gave."""
        for request_id in batch.preempted:
            self._shares.pop(request_id, None)
        # A static group is computed with its padding, and with rows that have ended.
        self._shares.update((share.request_id, share) for share in batch.scheduled if share.request_id in self._open)
        for output in outputs:
            if output.queue_time_s is not None:
                self._compare(output.request_id, output.queue_time_s, step_time_s)
            if output.finish_reason is not None and not (output.refused or output.overloaded):
                self._forget(output)

    def state(self) -> QueueState:
        """The queue as of the last step, with what has arrived since."""
        capacity, pool = self._config.capacity, self._scheduler.pool
        running: list[RunningRequest] = []
        num_decodes = num_context_tokens = num_prefill_tokens = 0
        for share in self._shares.values():
            num_blocks = len(share.block_table)
            num_slots = num_blocks * capacity.block_size
            if share.sampling is None:
                # A prompt's blocks are claimed all at once.
                num_prefill_tokens += max(0, num_slots - share.stop)
                max_tokens_left = capacity.max_total_tokens - num_slots
            else:
                num_decodes += 1
                num_context_tokens += share.stop + 1
                max_tokens_left = min(
                    share.sampling.max_tokens - share.num_output_tokens - 1,
                    capacity.max_total_tokens - share.stop - 1,
                )
            running.append(RunningRequest(num_blocks, max(1, max_tokens_left)))
        return QueueState(
            running=tuple(running),
            decodes=StepShape(num_decodes, num_decodes, num_context_tokens, num_context_tokens),
            num_prefill_tokens=num_prefill_tokens,
            num_waiting=self._scheduler.num_waiting,
            num_waiting_tokens=self._scheduler.waiting_tokens,
            num_available_blocks=pool.num_available,
            num_total_blocks=pool.num_total,
            block_size=capacity.block_size,
            max_num_running=self._scheduler.max_num_running,
            mean_output_tokens=round(self._output_tokens.value),
        )

    def _compare(self, request_id: str, queue_time_s: float, step_time_s: float) -> None:
        prediction = self._predictions.pop(request_id, None)
        if prediction is None:
            return
        measured_s = max(0.0, queue_time_s - prediction.age_s)
        # Nobody is admitted in the middle of a step: within one, a prediction is as good as another.
        scale = max(measured_s, prediction.delay_s, step_time_s)
        if scale > 0.0:
            self._error.add(abs(measured_s - prediction.delay_s) / scale)

    def _forget(self, output: RequestOutput) -> None:
        self._open.discard(output.request_id)
        self._predictions.pop(output.request_id, None)
        share = self._shares.pop(RequestId(output.request_id), None)
        # An abort counts too: so end those whose stop string was found.
        if share is not None and share.sampling is not None and output.error is None:
            self._output_tokens.add(share.num_output_tokens + 1)
