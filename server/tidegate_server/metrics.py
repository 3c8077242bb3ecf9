"""Instruments: every metric of the contract, zero from the first scrape."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate_contract import metric_names as names
from tidegate_contract.admin import ServerState
from tidegate_contract.metric_names import Metric, MetricKind
from tidegate_server.engine.messages import FinishReason, StepOutput
from tidegate_server.engine.snapshot import EngineSnapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# `_created` series would double the number of counters and are not in the contract.
disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client leaves this function untyped


@dataclass(frozen=True, slots=True)
class BuildFacts:
    """What is running; known in full once the engine is ready."""

    version: str
    device: str = ""
    dtype: str = ""
    kernels: str = ""
    block_size: int = 0
    num_kv_blocks: int = 0
    prefix_caching: bool = True
    exact: bool | None = None  # None: not probed
    inexact_ops: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """One of the contract's VERDICTS."""
        match self.exact:
            case None:
                return names.NOT_PROBED
            case True:
                return names.EXACT
            case False:
                return names.INEXACT


class ServerMetrics:
    """All of one pod's metrics.

    Histograms and the counters of requests are fed by the API; everything the engine counts is read from its heartbeat
    when a scrape comes.
    """

    def __init__(
        self,
        model_name: str,
        snapshot: Callable[[], EngineSnapshot],
        state: Callable[[], ServerState],
        facts: Callable[[], BuildFacts],
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._num_hung_steps = 0
        engine = _EngineCollector(model_name, snapshot, state, facts, lambda: self._num_hung_steps)
        self._registry.register(engine)
        self._model_name = model_name

        self.step_time = self._histogram(names.STEP_TIME)
        self._step_tokens = self._labelled_histogram(names.STEP_TOKENS, names.STEP_TOKEN_KINDS)
        self.queue_time = self._histogram(names.QUEUE_TIME, names.VLLM_QUEUE_TIME)
        self.ttft = self._histogram(names.TTFT, names.VLLM_TTFT)
        self.itl = self._histogram(names.ITL, names.VLLM_ITL)
        self.tpot = self._histogram(names.TPOT)
        self.e2e = self._histogram(names.E2E_LATENCY, names.VLLM_E2E_LATENCY)
        self.prompt_length = self._histogram(names.PROMPT_LENGTH)
        self.output_length = self._histogram(names.OUTPUT_LENGTH)

        self.prompt_tokens = self._counter(names.PROMPT_TOKENS, names.VLLM_PROMPT_TOKENS)
        self.output_tokens = self._counter(names.OUTPUT_TOKENS, names.VLLM_GENERATION_TOKENS)
        self._refused = self._labelled_counter(names.ADMISSION_REFUSED, names.REFUSAL_REASONS)
        preemptions = self._new_counter(names.PREEMPTIONS)
        self._preemptions = {
            labels: preemptions.labels(model_name, *labels)
            for labels in product(names.PREEMPTION_KINDS, names.PREEMPTION_REASONS)
        }
        requests = self._labelled_counter(names.REQUESTS, names.OUTCOMES)
        succeeded = self._labelled_counter(names.VLLM_REQUEST_SUCCESS, names.FINISHED_REASONS)
        self._ended: Mapping[str, tuple[Counter, ...]] = {
            outcome: tuple(counters[outcome] for counters in (requests, succeeded) if outcome in counters)
            for outcome in names.OUTCOMES
        }

    def prompt_taken(self, num_tokens: int) -> None:
        """Count one prompt that the engine has, however many choices are drawn for it."""
        self.prompt_tokens.inc(num_tokens)
        self.prompt_length.observe(num_tokens)

    def step_told(self, step: StepOutput) -> None:
        """Count what the engine tells with one message."""
        for each in step.preemptions:
            self._preemptions[each.kind, each.reason].inc(each.count)
        if step.num_new_tokens == 0:  # it only told of refused and aborted requests
            return
        self.step_time.observe(step.step_time_s)
        if step.num_prefill_tokens > 0:
            self._step_tokens[names.PREFILL].observe(step.num_prefill_tokens)
        if step.num_decode_tokens > 0:
            self._step_tokens[names.DECODE].observe(step.num_decode_tokens)

    def request_ended(self, outcome: str) -> None:
        """Count one request; `outcome` is one of the contract's OUTCOMES."""
        for counter in self._ended[outcome]:
            counter.inc()

    def request_refused(self, reason: str | None) -> None:
        """Count one request that the engine never had.

        Args:
            reason: one of the contract's REFUSAL_REASONS; None when something is wrong with the request itself.
        """
        self.request_ended("refused")
        if reason is not None:
            self.admission_refused(reason)

    def admission_refused(self, reason: str) -> None:
        """Count one request that was not admitted, be it at the door or by the engine."""
        self._refused[reason].inc()

    def step_hung(self) -> None:
        """Count a step that passed its bound, which the engine itself cannot."""
        self._num_hung_steps += 1

    def exposition(self) -> bytes:
        """One scrape in Prometheus' text format."""
        return generate_latest(self._registry)

    def _histogram(self, *metrics: Metric) -> "_Each":
        return _Each(tuple(self._new_histogram(m).labels(*self._owner(m)) for m in metrics))

    def _counter(self, *metrics: Metric) -> "_Each":
        return _Each(tuple(self._new_counter(m).labels(*self._owner(m)) for m in metrics))

    def _labelled_counter(self, metric: Metric, values: tuple[str, ...]) -> Mapping[str, Counter]:
        counter = self._new_counter(metric)
        return {value: counter.labels(*self._owner(metric), value) for value in values}

    def _labelled_histogram(self, metric: Metric, values: tuple[str, ...]) -> Mapping[str, Histogram]:
        histogram = self._new_histogram(metric)
        return {value: histogram.labels(*self._owner(metric), value) for value in values}

    def _new_counter(self, metric: Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self._registry)

    def _new_histogram(self, metric: Metric) -> Histogram:
        return Histogram(metric.name, metric.help, metric.labels, registry=self._registry, buckets=metric.buckets)

    def _owner(self, metric: Metric) -> tuple[str, ...]:
        return owner_labels(metric, self._model_name)


def owner_labels(metric: Metric, model_name: str) -> tuple[str, ...]:
    """The values of a metric's first labels, which say whose it is."""
    return (model_name, names.ENGINE) if names.ENGINE_LABEL in metric.labels else (model_name,)


class _Each:
    """The same measurement under every name that it has."""

    def __init__(self, instruments: tuple[Histogram | Counter, ...]) -> None:
        self._instruments = instruments

    def observe(self, value: float) -> None:
        for instrument in self._instruments:
            assert isinstance(instrument, Histogram)
            instrument.observe(value)

    def inc(self, amount: int) -> None:
        for instrument in self._instruments:
            assert isinstance(instrument, Counter)
            instrument.inc(amount)


class RequestMeter:
    """Measures one engine request from arrival to end. Times are CLOCK_MONOTONIC seconds, passed in."""

    def __init__(self, metrics: ServerMetrics, arrived_s: float) -> None:
        self._metrics = metrics
        self._arrived_s = arrived_s
        self._first_s: float | None = None
        self._last_s = arrived_s
        self._num_tokens = 0
        self._ended = False

    def queued(self, queue_time_s: float) -> None:
        self._metrics.queue_time.observe(queue_time_s)

    def tokens(self, num_tokens: int, now_s: float) -> None:
        """So many tokens were sent at once: the first of them waited, the others came with it."""
        if num_tokens == 0:
            return
        if self._first_s is None:
            self._first_s = now_s
            self._metrics.ttft.observe(now_s - self._arrived_s)
        else:
            self._metrics.itl.observe(now_s - self._last_s)
        for _ in range(num_tokens - 1):
            self._metrics.itl.observe(0.0)
        self._last_s = now_s
        self._num_tokens += num_tokens
        self._metrics.output_tokens.inc(num_tokens)

    def ended(self, outcome: str, now_s: float) -> None:
        """The request is over; only the first call counts."""
        if self._ended:
            return
        self._ended = True
        self._metrics.request_ended(outcome)
        self._metrics.output_length.observe(self._num_tokens)
        if outcome in (FinishReason.STOP.value, FinishReason.LENGTH.value):
            self._metrics.e2e.observe(now_s - self._arrived_s)
            if self._first_s is not None and self._num_tokens > 1:
                self._metrics.tpot.observe((self._last_s - self._first_s) / (self._num_tokens - 1))


class _EngineCollector(Collector):
    """Reads the engine's heartbeat at scrape time."""

    def __init__(
        self,
        model_name: str,
        snapshot: Callable[[], EngineSnapshot],
        state: Callable[[], ServerState],
        facts: Callable[[], BuildFacts],
        num_hung_steps: Callable[[], int],
    ) -> None:
        self._model_name = model_name
        self._num_hung_steps = num_hung_steps
        self._snapshot = snapshot
        self._state = state
        self._facts = facts

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        seen = self._snapshot()
        for metric, value in _readings(seen):
            yield self._family(metric, ((), value))
        swapped = (((names.SWAP_OUT,), seen.swapped_out_bytes), ((names.SWAP_IN,), seen.swapped_in_bytes))
        yield self._family(names.SWAP_BYTES, *swapped)
        yield self._family(
            names.PREDICTION_ERROR,
            ((names.PREDICTED_QUEUE_DELAY,), seen.prediction_error_ratio),
            ((names.PREDICTED_STEP_TIME,), seen.step_time_error_ratio),
        )
        yield self._family(names.FAULTS, *_faults(seen, self._num_hung_steps()))
        kv_blocks = _kv_blocks(seen).items()
        yield self._family(names.KV_BLOCKS, *(((state,), number) for state, number in kv_blocks))
        prefix_tokens = _prefix_tokens(seen).items()
        yield self._family(names.PREFIX_CACHE_TOKENS, *(((result,), number) for result, number in prefix_tokens))
        state = self._state()
        yield self._family(
            names.SERVER_STATE,
            *(((each.value,), 1 if each is state else 0) for each in ServerState),
        )
        yield from self._facts_families()

    def _facts_families(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        facts = self._facts()
        yield self._family(names.BUILD_INFO, ((facts.version, facts.device, facts.dtype, facts.kernels), 1))
        verdicts = (((each,), 1 if each == facts.verdict else 0) for each in names.VERDICTS)
        yield self._family(names.EXACTNESS, *verdicts)
        cache = (str(facts.block_size), str(facts.num_kv_blocks), str(facts.prefix_caching), facts.dtype)
        yield self._family(names.VLLM_CACHE_CONFIG_INFO, (cache, 1))

    def _family(
        self, metric: Metric, *samples: tuple[tuple[str, ...], float]
    ) -> CounterMetricFamily | GaugeMetricFamily:
        """One metric with its samples: the values of the labels after the owner's, and the number."""
        owner = owner_labels(metric, self._model_name)
        kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
        family: CounterMetricFamily | GaugeMetricFamily = kind(metric.name, metric.help, labels=metric.labels)
        for labels, value in samples:
            family.add_metric((*owner, *labels), value)
        return family


def _readings(seen: EngineSnapshot) -> tuple[tuple[Metric, float], ...]:
    """What the heartbeat says, under each name that it has."""
    prefix_hits = seen.prefix_hit_tokens + seen.prefix_host_hit_tokens
    usage = seen.kv_blocks_live / seen.kv_blocks_total if seen.kv_blocks_total else 0.0
    return (
        (names.REQUESTS_RUNNING, seen.num_running),
        (names.VLLM_REQUESTS_RUNNING, seen.num_running),
        (names.REQUESTS_WAITING, seen.num_waiting),
        (names.VLLM_REQUESTS_WAITING, seen.num_waiting),
        (names.WAITING_PROMPT_TOKENS, seen.waiting_prompt_tokens),
        (names.KV_BLOCKS_CAPACITY, seen.kv_blocks_total),
        (names.KV_USAGE_RATIO, usage),
        (names.VLLM_KV_CACHE_USAGE, usage),
        (names.VLLM_PREEMPTIONS, seen.num_preemptions),
        (names.VLLM_PREFIX_CACHE_QUERIES, prefix_hits + seen.prefix_miss_tokens),
        (names.VLLM_PREFIX_CACHE_HITS, prefix_hits),
        (names.QUEUE_DELAY_PREDICTED, seen.queue_delay_predicted_s),
        (names.STEPS, seen.step),
        (names.THRASH_LEVEL, seen.thrash_level),
        (names.AUDIT_REPAIRS, seen.num_audit_repairs),
    )


def _faults(seen: EngineSnapshot, num_hung_steps: int) -> tuple[tuple[tuple[str], int], ...]:
    """The samples of the faults, by kind."""
    return (
        (("request",), seen.faults_request),
        (("bad_logits",), seen.faults_bad_logits),
        (("out_of_memory",), seen.faults_out_of_memory),
        (("step",), seen.faults_step),
        (("copy",), seen.faults_copy),
        (("hung_step",), num_hung_steps),
    )


def _kv_blocks(seen: EngineSnapshot) -> Mapping[str, int]:
    """Blocks by the contract's KV_BLOCK_STATES."""
    return {
        "free": seen.kv_blocks_free,
        "live": seen.kv_blocks_live,
        "cached": seen.kv_blocks_cached,
        "pending": seen.kv_blocks_pending,
        "swapped": seen.host_blocks_held,
    }


def _prefix_tokens(seen: EngineSnapshot) -> Mapping[str, int]:
    """Tokens by the contract's PREFIX_RESULTS."""
    return {
        "hit": seen.prefix_hit_tokens,
        "host_hit": seen.prefix_host_hit_tokens,
        "miss": seen.prefix_miss_tokens,
        "recomputed": seen.recomputed_tokens,
    }
