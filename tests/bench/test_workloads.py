import pytest

from tidegate_bench.workloads import DESCRIPTIONS, FIRST_TOKEN_ID, FULL, QUICK, Scale, Workload, build_workload


def lengths(workload: Workload) -> list[tuple[float, int, int]]:
    return [
        (request.arrival_s, len(request.prompt_token_ids), request.num_output_tokens) for request in workload.requests
    ]


@pytest.mark.parametrize("name", DESCRIPTIONS)
@pytest.mark.parametrize("scale", [FULL, QUICK], ids=["full", "quick"])
def test_same_seed_gives_the_same_requests(name: str, scale: Scale) -> None:
    assert build_workload(name, scale, seed=3, repeat=1) == build_workload(name, scale, seed=3, repeat=1)


@pytest.mark.parametrize("name", ["W1", "W3", "W5"])
def test_another_seed_gives_other_lengths(name: str) -> None:
    assert lengths(build_workload(name, FULL, seed=0)) != lengths(build_workload(name, FULL, seed=1))


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_repeat_is_the_same_work_with_no_token_of_a_prompt_shared(name: str) -> None:
    first, second = build_workload(name, FULL, repeat=0), build_workload(name, FULL, repeat=1)
    assert lengths(first) == lengths(second)
    for one, other in zip(first.requests, second.requests, strict=True):
        assert one.prompt_token_ids[:16] != other.prompt_token_ids[:16]


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_token_ids_stay_between_the_special_ones_and_the_vocabulary(name: str) -> None:
    workload = build_workload(name, QUICK, vocab_size=1010)
    ids = {token for request in workload.requests for token in request.prompt_token_ids}
    assert FIRST_TOKEN_ID <= min(ids) <= max(ids) < 1010


def test_w1_is_a_burst_of_64_within_its_lengths() -> None:
    workload = build_workload("W1", FULL)
    assert len(workload.requests) == 64
    assert all(request.arrival_s == 0 for request in workload.requests)
    assert all(32 <= len(request.prompt_token_ids) <= 256 for request in workload.requests)
    assert all(16 <= request.num_output_tokens <= 128 for request in workload.requests)


def test_w2_shares_its_first_512_tokens_and_no_more() -> None:
    workload = build_workload("W2", FULL)
    assert [len(request.prompt_token_ids) for request in workload.requests] == [544] * 32
    assert len({request.prompt_token_ids[:512] for request in workload.requests}) == 1
    assert len({request.prompt_token_ids[512:] for request in workload.requests}) == 32
    assert workload.num_prompt_tokens == 32 * 544
    assert 512 + 32 * 32 - 8 <= workload.num_distinct_prompt_tokens <= 512 + 32 * 32  # a token may agree by chance


def test_w3_arrives_in_order_within_a_minute_at_about_two_a_second() -> None:
    arrivals = [request.arrival_s for request in build_workload("W3", FULL).requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] > 0
    assert arrivals[-1] < 60
    assert 80 <= len(arrivals) <= 160  # 120 expected; the bounds are more than three standard deviations away


def test_w4_is_one_stream_of_128_in_and_128_out() -> None:
    assert lengths(build_workload("W4", FULL)) == [(0.0, 128, 128)]


def test_w5_is_w1_with_less_memory() -> None:
    full, tight = build_workload("W1", FULL), build_workload("W5", FULL)
    assert full.requests == tight.requests
    assert full.kv_tokens is None
    assert tight.kv_tokens == 3072
    assert tight.num_prompt_tokens + tight.num_output_tokens > 2 * tight.kv_tokens


@pytest.mark.parametrize("scale", [FULL, QUICK], ids=["full", "quick"])
def test_every_request_of_w5_fits_its_memory_alone(scale: Scale) -> None:
    workload = build_workload("W5", scale)
    assert workload.kv_tokens is not None
    assert all(
        len(request.prompt_token_ids) + request.num_output_tokens < workload.kv_tokens for request in workload.requests
    )


def test_unknown_workload_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"W9.*W1, W2"):
        build_workload("W9", FULL)


def test_vocabulary_too_small_to_draw_from_is_refused() -> None:
    with pytest.raises(ValueError, match="512 tokens"):
        build_workload("W4", FULL, vocab_size=512)
