"""Two operators and one lease, on a clock that the test turns."""

import asyncio
from dataclasses import dataclass, field

import pytest

from tests.operator.fake_cluster import FakeCluster
from tidegate_operator.cluster import LEASE, Manifest, ObjectRef
from tidegate_operator.errors import LeaseLost, Unavailable
from tidegate_operator.lease import LEASE_S, RENEW_DEADLINE_S, RETRY_S, Election, keep_leading, wait_to_lead

REF = ObjectRef(LEASE, "system", "tidegate-operator")
TAKE_OVER_S = 15  # promised


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Pair:
    cluster: FakeCluster = field(default_factory=FakeCluster)
    clock: Clock = field(default_factory=Clock)

    def election(self, identity: str) -> Election:
        return Election(self.cluster, REF, identity, self.clock)

    @property
    def spec(self) -> Manifest:
        return dict(self.cluster.body(LEASE, "system", "tidegate-operator")["spec"])


def tries(election: Election) -> bool:
    return asyncio.run(election.acquire_or_renew())


def test_first_to_come_leads_and_the_second_stands_by() -> None:
    pair = Pair()
    a, b = pair.election("a"), pair.election("b")
    assert tries(a)
    assert not tries(b)
    assert pair.spec["holderIdentity"] == "a"


def test_standby_takes_over_from_a_dead_leader_in_time_and_not_before() -> None:
    pair = Pair()
    a, b = pair.election("a"), pair.election("b")
    assert tries(a)
    died_at = pair.clock.now
    while not tries(b):
        assert pair.clock.now - died_at < TAKE_OVER_S
        pair.clock.now += RETRY_S
    assert pair.clock.now - died_at > LEASE_S
    assert (pair.spec["holderIdentity"], pair.spec["leaseTransitions"]) == ("b", 1)
    assert not tries(a)


def test_renewing_leader_keeps_the_lease_for_ever() -> None:
    pair = Pair()
    a, b = pair.election("a"), pair.election("b")
    for _ in range(50):
        assert tries(a)
        assert not tries(b)
        pair.clock.now += RETRY_S
    assert pair.spec["leaseTransitions"] == 0


def test_released_lease_is_taken_at_the_next_try() -> None:
    pair = Pair()
    a, b = pair.election("a"), pair.election("b")
    tries(a)
    asyncio.run(a.release())
    assert tries(b)


def test_standby_never_releases_what_it_does_not_hold() -> None:
    pair = Pair()
    a, b = pair.election("a"), pair.election("b")
    tries(a)
    tries(b)
    asyncio.run(b.release())
    assert pair.spec["holderIdentity"] == "a"


def test_restarted_leader_of_the_same_name_goes_on_at_once() -> None:
    pair = Pair()
    tries(pair.election("a"))
    assert tries(pair.election("a"))
    assert pair.spec["leaseTransitions"] == 0


def test_of_two_that_find_it_run_out_only_one_wins() -> None:
    pair = Pair()
    tries(pair.election("dead"))
    b, c = pair.election("b"), pair.election("c")
    assert not tries(b)
    assert not tries(c)
    pair.clock.now += LEASE_S + 1

    async def both() -> list[bool]:
        return list(await asyncio.gather(b.acquire_or_renew(), c.acquire_or_renew()))

    assert asyncio.run(both()).count(True) == 1


class BrokenCluster(FakeCluster):
    async def get(self, ref: ObjectRef) -> Manifest | None:
        raise Unavailable("no route")


def test_api_server_that_is_away_is_no_lease() -> None:
    assert not tries(Election(BrokenCluster(), REF, "a", Clock()))


def test_leader_that_cannot_renew_gives_up_before_a_standby_may_take_over() -> None:
    assert RENEW_DEADLINE_S + RETRY_S < LEASE_S
    clock = Clock()

    class Later(Election):
        async def acquire_or_renew(self) -> bool:
            clock.now += RENEW_DEADLINE_S + 0.1
            return False

    election = Later(FakeCluster(), REF, "a", clock, retry_s=0)

    async def lead() -> None:
        await keep_leading(election, asyncio.Event())

    with pytest.raises(LeaseLost):
        asyncio.run(lead())


def test_told_to_stop_it_waits_no_longer() -> None:
    async def stopped() -> bool:
        stop = asyncio.Event()
        stop.set()
        await keep_leading(Pair().election("a"), stop)
        return await wait_to_lead(Pair().election("a"), stop)

    assert not asyncio.run(stopped())
