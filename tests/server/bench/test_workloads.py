import pytest

from tidegate_server.bench.prompts import prompt_token_ids
from tidegate_server.bench.traces import TRACE_BLOCK_TOKENS, TraceEntry
from tidegate_server.bench.workloads import (
    LengthRange,
    PlannedRequest,
    Segment,
    WorkloadKind,
    WorkloadOptions,
    build_workload,
    describe_workload,
    most_tokens,
)

VOCAB_SIZE = 32_000


def options(kind: WorkloadKind = WorkloadKind.RANGE, **given: object) -> WorkloadOptions:
    defaults: dict[str, object] = {
        "num_requests": 50,
        "prompt_tokens": LengthRange(8, 40),
        "output_tokens": LengthRange(2, 9),
    }
    return WorkloadOptions(kind=kind, **(defaults | given))  # type: ignore[arg-type]  # test keywords are the options' own


def prompt(request: PlannedRequest, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> list[int]:
    return prompt_token_ids(request, vocab_size, seed)


def test_the_same_options_give_the_same_requests_and_another_seed_others() -> None:
    assert build_workload(options(rate_per_s=2.0)) == build_workload(options(rate_per_s=2.0))
    assert build_workload(options(seed=1)) != build_workload(options(seed=2))


def test_lengths_fill_their_ranges_and_stay_within() -> None:
    requests = build_workload(options(num_requests=2000))
    assert {request.num_prompt_tokens for request in requests} == set(range(8, 41))
    assert {request.num_output_tokens for request in requests} == set(range(2, 10))


def test_fixed_lengths_are_all_the_same() -> None:
    fixed = options(WorkloadKind.FIXED, prompt_tokens=LengthRange(20, 20), output_tokens=LengthRange(5, 5))
    assert {(r.num_prompt_tokens, r.num_output_tokens) for r in build_workload(fixed)} == {(20, 5)}


def test_prompts_are_as_long_as_planned_within_the_vocabulary_and_all_different() -> None:
    requests = build_workload(options())
    prompts = [prompt(request, vocab_size=2500) for request in requests]
    assert [len(each) for each in prompts] == [request.num_prompt_tokens for request in requests]
    assert all(1000 <= token < 2500 for each in prompts for token in each)
    assert len({tuple(each) for each in prompts}) == len(prompts)


def test_a_prompt_is_drawn_again_the_same_and_differs_by_seed() -> None:
    (request, *_) = build_workload(options())
    assert prompt(request, seed=1) == prompt(request, seed=1)
    assert prompt(request, seed=1) != prompt(request, seed=2)


def test_a_small_vocabulary_still_gives_prompts() -> None:
    (request, *_) = build_workload(options())
    assert all(5 <= token < 10 for token in prompt(request, vocab_size=10))


def test_shared_prefixes_are_few_and_what_follows_is_each_ones_own() -> None:
    shared = options(WorkloadKind.SHARED_PREFIX, num_prefixes=3, prefix_tokens=16)
    prompts = [prompt(request) for request in build_workload(shared)]
    assert len({tuple(each[:16]) for each in prompts}) == 3
    assert len({tuple(each[16:]) for each in prompts}) == len(prompts)
    assert all(16 + 8 <= len(each) <= 16 + 40 for each in prompts)


TRACE = (
    TraceEntry(0.0, TRACE_BLOCK_TOKENS + 100, 6, (0, 1)),
    TraceEntry(4.0, TRACE_BLOCK_TOKENS + 40, 4, (0, 1)),
    TraceEntry(6.0, 30, 0),
)


def test_a_trace_keeps_lengths_times_and_shared_prefixes() -> None:
    requests = build_workload(options(WorkloadKind.TRACE, num_requests=None), TRACE)
    assert [request.arrival_s for request in requests] == [0.0, 4.0, 6.0]
    assert [request.num_prompt_tokens for request in requests] == [612, 552, 30]
    first, second, third = (prompt(request) for request in requests)
    assert second == first[: len(second)]  # the same blocks, the last one shorter
    assert third[:10] != first[:10]


def test_a_recorded_request_without_output_asks_for_one_token() -> None:
    assert build_workload(options(WorkloadKind.TRACE), TRACE)[2].num_output_tokens == 1


def test_a_trace_runs_faster_by_its_factor() -> None:
    requests = build_workload(options(WorkloadKind.TRACE, speed_up=2.0), TRACE)
    assert [request.arrival_s for request in requests] == [0.0, 2.0, 3.0]


def test_a_rate_takes_the_place_of_a_traces_times() -> None:
    requests = build_workload(options(WorkloadKind.TRACE, rate_per_s=100.0), TRACE)
    assert 0.0 < requests[0].arrival_s < requests[1].arrival_s < requests[2].arrival_s < 4.0


def test_long_requests_of_a_trace_are_cut() -> None:
    requests = build_workload(options(WorkloadKind.TRACE, max_prompt_tokens=520, max_output_tokens=5), TRACE)
    assert [request.num_prompt_tokens for request in requests] == [520, 520, 30]
    assert [request.num_output_tokens for request in requests] == [5, 4, 1]
    assert requests[0].segments == (Segment("block/0", 512), Segment("block/1", 8))


def test_only_the_first_requests_of_a_trace_are_taken_when_fewer_are_asked_for() -> None:
    assert len(build_workload(options(WorkloadKind.TRACE, num_requests=2), TRACE)) == 2


def test_what_arrives_after_the_duration_is_left_out() -> None:
    assert len(build_workload(options(WorkloadKind.TRACE, duration_s=5.0), TRACE)) == 2


def test_the_longest_request_counts_prompt_and_output() -> None:
    assert most_tokens(build_workload(options(WorkloadKind.TRACE), TRACE)) == 612 + 6
    assert most_tokens(()) == 0


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            options(),
            "range: 50 requests, 8 to 40 tokens in, 2 to 9 out, all at once, seed 0",
        ),
        (
            options(WorkloadKind.SHARED_PREFIX, num_prefixes=3, prefix_tokens=16, rate_per_s=2.5),
            "shared-prefix: 50 requests, 3 prefixes of 16 tokens, 8 to 40 more in, 2 to 9 out, "
            "2.5 a second (Poisson), seed 0",
        ),
        (
            options(WorkloadKind.TRACE, speed_up=4.0),
            "trace: 3 requests, lengths as recorded, at the recorded times, 4 times as fast, seed 0",
        ),
        (
            options(WorkloadKind.TRACE, max_prompt_tokens=520),
            "trace: 3 requests, lengths as recorded but 520 in at most, at the recorded times, seed 0",
        ),
    ],
)
def test_a_workload_is_told_in_one_line(given: WorkloadOptions, line: str) -> None:
    assert describe_workload(given, build_workload(given, TRACE)) == line
