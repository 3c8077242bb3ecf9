"""Who gives blocks back, and how, as a table."""

from dataclasses import replace

import pytest

from tidegate_server.engine.batch import RequestId
from tidegate_server.engine.preemption import Candidate, Preemption, choose_preemption
from tidegate_server.engine.preemption_cost import ConstantCost
from tidegate_server.engine.preemption_kind import PreemptionKind
from tidegate_server.settings import PreemptionMode, PreemptionPolicy

BLOCK_SIZE = 4
CHEAP_COPIES = ConstantCost(token_s=1.0, block_copy_s=0.1)
DEAR_COPIES = ConstantCost(token_s=1.0, block_copy_s=100.0)


def candidate(name: str, claim: int, num_computed_tokens: int = 10, **fields: object) -> Candidate:
    num_blocks = -(-num_computed_tokens // BLOCK_SIZE)
    plain = Candidate(
        request_id=RequestId(name),
        precedence=(0, claim),
        num_preemptions=0,
        num_output_tokens=0,
        num_computed_tokens=num_computed_tokens,
        own_blocks=(True,) * num_blocks,
        num_known_blocks=0,
        num_host_blocks=None,
    )
    return replace(plain, **fields)  # type: ignore[arg-type]  # test keywords are the candidate's own


def choose(
    *candidates: Candidate,
    num_wanted: int = 1,
    mode: PreemptionMode = PreemptionMode.AUTO,
    policy: PreemptionPolicy = PreemptionPolicy.CHEAPEST,
    cost: ConstantCost = DEAR_COPIES,
) -> Preemption:
    chosen = choose_preemption(candidates, num_wanted, BLOCK_SIZE, mode, policy, cost)
    assert chosen is not None
    return chosen


def test_nobody_is_preempted_where_there_is_nobody() -> None:
    chosen = choose_preemption((), 1, BLOCK_SIZE, PreemptionMode.AUTO, PreemptionPolicy.CHEAPEST, ConstantCost())
    assert chosen is None


@pytest.mark.parametrize(
    ("mode", "kind", "num_kept", "cost_s"),
    [
        pytest.param(PreemptionMode.AUTO, PreemptionKind.SWAP, 0, 0.6, id="copies both ways are cheapest"),
        pytest.param(PreemptionMode.RECOMPUTE, PreemptionKind.RECOMPUTE, 0, 10.0, id="all of it anew, as told"),
        pytest.param(PreemptionMode.SWAP, PreemptionKind.SWAP, 0, 0.6, id="copies, as told"),
        pytest.param(PreemptionMode.TAIL, PreemptionKind.TAIL, 2, 2.0, id="two tokens of the last block, as told"),
    ],
)
def test_the_mode_names_the_way(mode: PreemptionMode, kind: PreemptionKind, num_kept: int, cost_s: float) -> None:
    chosen = choose(candidate("a", 1, num_host_blocks=3), mode=mode, cost=CHEAP_COPIES)
    assert (chosen.kind, chosen.num_kept_blocks) == (kind, num_kept)
    assert chosen.cost_s == pytest.approx(cost_s)


def test_dear_copies_make_the_tail_the_cheapest_way() -> None:
    assert choose(candidate("a", 1, num_host_blocks=3)).kind is PreemptionKind.TAIL


def test_swap_without_room_on_the_host_computes_again() -> None:
    assert choose(candidate("a", 1), mode=PreemptionMode.SWAP).kind is PreemptionKind.RECOMPUTE


def test_what_the_prefix_cache_gives_back_costs_nothing() -> None:
    chosen = choose(candidate("a", 1, num_computed_tokens=10, num_known_blocks=2), mode=PreemptionMode.RECOMPUTE)
    assert chosen.cost_s == 2.0


def test_the_block_that_is_wanted_now_is_not_given_back() -> None:
    chosen = choose(candidate("a", 1, num_computed_tokens=8, num_known_blocks=2), mode=PreemptionMode.RECOMPUTE)
    assert chosen.cost_s == 4.0


def test_a_tail_is_as_long_as_it_takes_to_free_own_blocks() -> None:
    shared_last = candidate("a", 1, num_computed_tokens=16, own_blocks=(False, True, True, False))
    assert choose(shared_last, num_wanted=2, mode=PreemptionMode.TAIL).num_kept_blocks == 1


def test_a_tail_of_everything_is_called_what_it_is() -> None:
    chosen = choose(candidate("a", 1), num_wanted=9, mode=PreemptionMode.TAIL)
    assert (chosen.kind, chosen.num_kept_blocks) == (PreemptionKind.RECOMPUTE, 0)


OLD = candidate("old", 1, num_computed_tokens=9, num_output_tokens=7, num_preemptions=2)
YOUNG = candidate("young", 2, num_computed_tokens=12, num_output_tokens=3, num_preemptions=1)
NEW = candidate("new", 3, num_computed_tokens=11, num_output_tokens=5, num_preemptions=1)


@pytest.mark.parametrize(
    ("policy", "victim"),
    [
        pytest.param(PreemptionPolicy.CHEAPEST, "old", id="one token of its last block"),
        pytest.param(PreemptionPolicy.NEWEST_FIRST, "new", id="the last to arrive"),
        pytest.param(PreemptionPolicy.LONGEST_FIRST, "old", id="the most tokens generated"),
        pytest.param(PreemptionPolicy.MOST_PREEMPTED_LAST, "new", id="fewest preemptions, then most tokens"),
    ],
)
def test_the_policy_names_the_victim(policy: PreemptionPolicy, victim: str) -> None:
    assert choose(OLD, YOUNG, NEW, policy=policy).request_id == victim


def test_among_equals_the_last_in_order_is_preempted() -> None:
    assert choose(candidate("first", 1), candidate("last", 2)).request_id == "last"
    lower = candidate("lower", 1, precedence=(9, 1))
    assert choose(lower, candidate("higher", 2)).request_id == "lower"


@pytest.mark.parametrize("policy", PreemptionPolicy)
def test_who_frees_nothing_is_preempted_only_when_nobody_else_can_be(policy: PreemptionPolicy) -> None:
    shares_all = candidate("shares", 9, num_output_tokens=99, own_blocks=(False,) * 3)
    assert choose(shares_all, OLD, policy=policy).request_id == "old"
    assert choose(shares_all, policy=policy).request_id == "shares"


@pytest.mark.parametrize("policy", PreemptionPolicy)
def test_the_lowest_priority_is_preempted_whatever_the_policy(policy: PreemptionPolicy) -> None:
    dear_but_low = candidate("low", 1, num_computed_tokens=12, num_preemptions=3, precedence=(9, 1))
    others = [candidate("high", 2, num_computed_tokens=9, num_output_tokens=8, precedence=(0, 2)), YOUNG, NEW]
    assert choose(dear_but_low, *others, policy=policy).request_id == "low"
