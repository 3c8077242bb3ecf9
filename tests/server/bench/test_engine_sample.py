import pytest

from tidegate_server.bench.engine_sample import EngineSample, summarise_engine


def sample(
    at_s: float, running: int, waiting: int, ratio: float, preempted: int, queries: int, hits: int
) -> EngineSample:
    return EngineSample(
        at_s=at_s,
        num_running=running,
        num_waiting=waiting,
        kv_usage_ratio=ratio,
        num_kv_blocks=200,
        preemptions={"recompute": preempted},
        prefix_query_tokens=queries,
        prefix_hit_tokens=hits,
    )


def test_gauges_give_their_peaks_and_counters_their_growth() -> None:
    engine = summarise_engine(
        [sample(0, 0, 9, 0.0, 5, 1000, 500), sample(1, 7, 2, 0.9, 6, 1500, 600), sample(2, 3, 0, 0.1, 8, 2000, 750)]
    )
    assert engine is not None
    assert (engine.peak_running, engine.peak_waiting) == (7, 9)
    assert (engine.peak_kv_blocks, engine.num_kv_blocks, engine.peak_kv_usage_ratio) == (180, 200, 0.9)
    assert engine.preemptions == {"recompute": 3}
    assert (engine.prefix_query_tokens, engine.prefix_hit_tokens) == (1000, 250)
    assert engine.prefix_hit_ratio == pytest.approx(0.25)


def test_a_kind_of_preemption_that_appears_later_counts_from_zero() -> None:
    engine = summarise_engine(
        [EngineSample(at_s=0, preemptions={"swap": 1}), EngineSample(at_s=1, preemptions={"swap": 1, "tail": 4})]
    )
    assert engine is not None
    assert engine.preemptions == {"swap": 0, "tail": 4}


def test_what_is_not_told_stays_unknown() -> None:
    engine = summarise_engine([EngineSample(at_s=0, kv_usage_ratio=0.5), EngineSample(at_s=1)])
    assert engine is not None
    assert engine.peak_kv_usage_ratio == 0.5
    assert (engine.peak_kv_blocks, engine.peak_running, engine.preemptions, engine.prefix_hit_ratio) == (None,) * 4


def test_no_lookup_is_no_hit_ratio() -> None:
    engine = summarise_engine([sample(0, 0, 0, 0.0, 0, 0, 0)])
    assert engine is not None
    assert engine.prefix_hit_ratio is None


def test_without_samples_there_is_nothing_to_say() -> None:
    assert summarise_engine([]) is None
