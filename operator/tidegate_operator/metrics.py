"""The operator's instruments, named by the contract; all are there, at zero, from the first scrape."""

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tidegate_contract import metric_names
from tidegate_contract.metric_names import Metric


@dataclass(slots=True)
class OperatorMetrics:
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    reconciles: Counter = field(init=False)
    reconcile_time: Histogram = field(init=False)
    queue_depth: Gauge = field(init=False)
    is_leader: Gauge = field(init=False)
    scalings: Counter = field(init=False)

    def __post_init__(self) -> None:
        self.reconciles = self._counter(metric_names.OPERATOR_RECONCILES, metric_names.RECONCILE_RESULTS)
        self.scalings = self._counter(metric_names.OPERATOR_SCALINGS, metric_names.SCALE_DIRECTIONS)
        self.queue_depth = self._gauge(metric_names.OPERATOR_QUEUE_DEPTH)
        self.is_leader = self._gauge(metric_names.OPERATOR_IS_LEADER)
        time = metric_names.OPERATOR_RECONCILE_TIME
        self.reconcile_time = Histogram(time.name, time.help, buckets=time.buckets, registry=self.registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, metric: Metric, values: tuple[str, ...]) -> Counter:
        counter = Counter(metric.name, metric.help, metric.labels, registry=self.registry)
        for value in values:
            counter.labels(value)
        return counter

    def _gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric.name, metric.help, registry=self.registry)
