"""A target's `/metrics` as samples of its engine.

vLLM's names are read, which our pods export too; of our own only the preemptions by kind, which vLLM does not tell.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import httpx2
import structlog
from prometheus_client.parser import text_string_to_metric_families

from tidegate_contract import metric_names as names
from tidegate_contract.metric_names import Metric
from tidegate_server.bench.engine_sample import EngineSample
from tidegate_server.bench.target import Clock
from tidegate_server.errors import StartError

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

SCRAPE_INTERVAL_S = 0.5
SCRAPE_TIMEOUT_S = 5.0
ANY_KIND = "of any kind"  # of vLLM's preemptions
_KIND_LABEL = names.PREEMPTIONS.labels[1]  # after the model's name

Look = Callable[[], Awaitable[None]]
# One metric's series: the labels and the value of each.
Series = Sequence[tuple[Mapping[str, str], float]]


class MetricsWatch:
    """An `EngineWatch` that reads a `/metrics` page every `SCRAPE_INTERVAL_S`: shorter peaks are not seen."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextlib.asynccontextmanager
    async def watching(self, on_sample: Callable[[EngineSample], None], now_s: Clock) -> AsyncIterator[None]:
        """
        Raises:
            StartError: the page cannot be read at the start.
        """
        async with httpx2.AsyncClient(timeout=SCRAPE_TIMEOUT_S) as http:

            async def look() -> None:
                on_sample(parse_metrics(await _page(http, self._url), now_s()))

            try:
                await look()
            except (httpx2.HTTPError, ValueError) as error:
                raise StartError(f"{self._url} cannot be read: {error or type(error).__name__}") from error
            looking = asyncio.create_task(_look_again_and_again(look))
            try:
                yield
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
                await _try(look)


async def _page(http: httpx2.AsyncClient, url: str) -> str:
    response = await http.get(url)
    if response.status_code != 200:
        raise ValueError(f"HTTP {response.status_code}")
    return response.text


async def _look_again_and_again(look: Look) -> None:
    while True:
        await asyncio.sleep(SCRAPE_INTERVAL_S)
        await _try(look)


async def _try(look: Look) -> None:
    try:
        await look()
    except (httpx2.HTTPError, ValueError) as error:
        log.warning("scrape_failed", error=str(error), next="the timeline has a hole here")


def parse_metrics(page: str, at_s: float) -> EngineSample:
    """One scrape; metrics that it lacks stay untold.

    Args:
        page: in Prometheus' text format.

    Raises:
        ValueError: it is in no such format.
    """
    series: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            series[sample.name].append((sample.labels, sample.value))

    def of(metric: Metric) -> Series:
        return series.get(metric.name, ())

    return EngineSample(
        at_s=at_s,
        num_running=_sum(of(names.VLLM_REQUESTS_RUNNING)),
        num_waiting=_sum(of(names.VLLM_REQUESTS_WAITING)),
        kv_usage_ratio=_mean(of(names.VLLM_KV_CACHE_USAGE)),
        num_kv_blocks=_num_blocks(of(names.VLLM_CACHE_CONFIG_INFO)),
        preemptions=_preemptions(of(names.PREEMPTIONS), of(names.VLLM_PREEMPTIONS)),
        prefix_query_tokens=_sum(of(names.VLLM_PREFIX_CACHE_QUERIES)),
        prefix_hit_tokens=_sum(of(names.VLLM_PREFIX_CACHE_HITS)),
    )


# A page has one series for each data-parallel engine: all of them together are what was measured.


def _sum(series: Series) -> int | None:
    return round(sum(value for _, value in series)) if series else None


def _mean(series: Series) -> float | None:
    return sum(value for _, value in series) / len(series) if series else None


def _num_blocks(infos: Series) -> int | None:
    counts = [labels.get("num_gpu_blocks", "") for labels, _ in infos]
    return sum(map(int, counts)) if counts and all(count.isdecimal() for count in counts) else None


def _preemptions(ours: Series, vllms: Series) -> Mapping[str, int] | None:
    by_kind: dict[str, int] = defaultdict(int)
    for labels, value in ours:
        by_kind[labels.get(_KIND_LABEL, ANY_KIND)] += round(value)
    total = _sum(vllms)
    if not by_kind and total is not None:
        by_kind[ANY_KIND] = total
    return dict(by_kind) or None
