import pytest

from tidegate_server.engine.batch import RequestId
from tidegate_server.engine.messages import FinishReason
from tidegate_server.engine.prefix_cache import BlockHash
from tidegate_server.engine.request import (
    ALLOWED_MOVES,
    ForbiddenMove,
    Request,
    RequestState,
    end_reason,
    holds_blocks,
    is_running,
)
from tidegate_server.engine.sampling_params import SamplingParams

EOS = 7


def make_request(
    output: tuple[int, ...] = (), sampling: SamplingParams | None = None, max_total_tokens: int = 100
) -> Request:
    return Request(
        request_id=RequestId("r"),
        token_ids=[1, 2, 3, *output],
        num_prompt_tokens=3,
        sampling=sampling if sampling is not None else SamplingParams(max_tokens=10),
        seed=0,
        end_token_ids=frozenset({EOS}),
        max_total_tokens=max_total_tokens,
        priority=0,
        claim=0,
        arrival_s=0.0,
        cache_root=BlockHash(b""),
    )


@pytest.mark.parametrize("before", RequestState)
@pytest.mark.parametrize("after", RequestState)
def test_a_request_makes_exactly_the_moves_of_the_table(before: RequestState, after: RequestState) -> None:
    request = make_request()
    request.state = before
    if after in ALLOWED_MOVES[before]:
        request.move_to(after)
        assert request.state is after
    else:
        with pytest.raises(ForbiddenMove, match=f"r: {before.name} to {after.name}"):
            request.move_to(after)
        assert request.state is before


def test_every_state_has_its_moves_and_only_the_end_has_none() -> None:
    assert set(ALLOWED_MOVES) == set(RequestState)
    assert [state for state, moves in ALLOWED_MOVES.items() if not moves] == [RequestState.FINISHED]


def test_every_unfinished_request_can_end_at_once() -> None:
    for state in set(RequestState) - {RequestState.FINISHED}:
        assert RequestState.FINISHED in ALLOWED_MOVES[state]


def test_blocks_are_held_while_computing_and_by_those_who_kept_some() -> None:
    running = {RequestState.PREFILLING, RequestState.DECODING}
    assert {state for state in RequestState if is_running(state)} == running
    assert {state for state in RequestState if holds_blocks(state)} == {*running, RequestState.TRIMMED}


STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("output", "sampling", "max_total_tokens", "expected"),
    [
        pytest.param((4,), SamplingParams(max_tokens=10), 100, None, id="an ordinary token goes on"),
        pytest.param((EOS,), SamplingParams(max_tokens=10), 100, STOP, id="an end token ends"),
        pytest.param((EOS,), SamplingParams(max_tokens=1), 100, STOP, id="an end token counts before the limit"),
        pytest.param((4, 5), SamplingParams(max_tokens=2), 100, LENGTH, id="max_tokens ends"),
        pytest.param((4, 5), SamplingParams(max_tokens=9), 5, LENGTH, id="the context ends"),
        pytest.param((EOS,), SamplingParams(max_tokens=9, min_tokens=1), 100, None, id="not before min_tokens"),
        pytest.param((4, EOS), SamplingParams(max_tokens=9, min_tokens=1), 100, STOP, id="right after min_tokens"),
        pytest.param((EOS,), SamplingParams(max_tokens=1, min_tokens=1), 100, LENGTH, id="min_tokens moves no limit"),
    ],
)
def test_what_ends_a_request(
    output: tuple[int, ...], sampling: SamplingParams, max_total_tokens: int, expected: FinishReason | None
) -> None:
    assert end_reason(make_request(output, sampling, max_total_tokens)) is expected
