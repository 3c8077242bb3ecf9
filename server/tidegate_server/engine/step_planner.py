"""Puts one step together: who gets how many tokens, who is admitted, and who gives way."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate_server.engine.batch import RequestId, ScheduledRequest
from tidegate_server.engine.block_tables import BlockTables, Claim
from tidegate_server.engine.event_log import EngineEvent, EventKind, EventLog
from tidegate_server.engine.preemption import Candidate, Preemption, PreemptionCost, choose_preemption
from tidegate_server.engine.preemption_kind import PreemptionKind, PreemptionReason
from tidegate_server.engine.request import Request, is_running
from tidegate_server.engine.roster import Roster
from tidegate_server.engine.step_budget import StepBudget
from tidegate_server.engine.step_time import NO_STEP, StepShape
from tidegate_server.settings import PreemptionMode, PreemptionPolicy

# After so many preemptions a request gets the blocks of its longest possible output at once, and keeps them.
RESERVED_AFTER: Final = 3


@dataclass(slots=True)
class Draft:
    """A step while it is put together."""

    step: int
    now: float
    max_num_running: int
    shares: list[ScheduledRequest] = field(default_factory=list)
    decodes: StepShape = NO_STEP  # the step with its decodes alone
    planned: StepShape = NO_STEP  # the step so far
    num_recomputed: int = 0  # of its tokens, those that were computed before a preemption
    admitted: list[tuple[Request, Claim]] = field(default_factory=list)
    is_short_of_blocks: bool = False  # somebody was preempted or stalled, so nobody is admitted


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRules:
    """How requests are preempted."""

    mode: PreemptionMode
    policy: PreemptionPolicy
    cost: PreemptionCost
    block_size: int
    prefix_caching: bool


class StepPlanner:
    """Shares tokens, blocks and seats of a step out among the requests of a roster.

    Attributes:
        preempted: those who were preempted since the list was last emptied.
        preemptions: all there were, by kind and reason.
    """

    def __init__(
        self, roster: Roster, tables: BlockTables, budget: StepBudget, rules: PreemptionRules, events: EventLog
    ) -> None:
        self._roster = roster
        self._tables = tables
        self._budget = budget
        self._rules = rules
        self._events = events
        self.preempted: list[RequestId] = []
        self.preemptions: Counter[tuple[PreemptionKind, PreemptionReason]] = Counter()

    def plan(self, draft: Draft) -> None:
        """Fill the draft; it stays empty when nobody can go on."""
        self._displace(draft)
        self._schedule_decodes(draft)
        self._schedule_prefills(draft)
        if not draft.is_short_of_blocks:
            self._admit(draft)
        if not draft.shares and self._roster.fence is None:
            self._end_standstill(draft)

    def preempt(
        self, request: Request, preemption: Preemption, reason: PreemptionReason, why: str, step: int, now: float
    ) -> None:
        """Carry a preemption out, and tell of it."""
        kind = EventKind.TRIMMED
        if is_running(request.state):
            kind = EventKind.PREEMPTED
            self.preempted.append(request.request_id)
            self.preemptions[preemption.kind, reason] += 1
        self._roster.preempt(request, preemption, now)
        self._events.record(EngineEvent(kind, step, now, request.request_id, why, len(request.token_ids)))

    # Tokens.

    def _schedule_decodes(self, draft: Draft) -> None:
        """One token for each running request, in order; preemption takes from those who come later in it."""
        running, index = self._roster.running, 0
        while index < len(running):
            request = running[index]
            index += 1
            if request.in_flight or request.num_new_tokens != 1:
                continue
            if self._make_room(request, draft):
                self._add_share(request, 1, draft)
        draft.decodes = draft.planned

    def _schedule_prefills(self, draft: Draft) -> None:
        """What the decodes leave of the budget, to as many running requests as it reaches."""
        for request in self._roster.running:
            if request.in_flight or request.num_new_tokens == 1:
                continue
            most = self._most_tokens(request, draft)
            if most == 0:
                return
            self._add_share(request, min(request.num_new_tokens, most), draft)

    def _admit(self, draft: Draft) -> None:
        """Requests that wait, strictly in order: whoever does not fit holds up those behind.

        So preempted requests return before new ones of their priority, and nothing new overtakes them: whoever was
        admitted once arrived before all of the same priority that never were.
        """
        while self._roster.waiting:
            request = self._roster.waiting.first()
            if self._most_tokens(request, draft) == 0:
                return
            if not self._seat(request, draft):
                return
            # What it found may leave it other tokens to compute than those that were asked for.
            self._add_share(request, min(request.num_new_tokens, max(1, self._most_tokens(request, draft))), draft)

    def _most_tokens(self, request: Request, draft: Draft) -> int:
        return self._budget.num_prefill_tokens(draft.decodes, draft.planned, request.num_computed_tokens)

    def _add_share(self, request: Request, num_tokens: int, draft: Draft) -> None:
        start = request.num_computed_tokens
        stop = start + num_tokens
        request.in_flight = True
        draft.planned = draft.planned.plus(start, num_tokens)
        draft.num_recomputed += max(0, min(stop, request.num_once_computed) - start)
        draft.shares.append(request.share(start, stop))

    # Seats and blocks.

    def _displace(self, draft: Draft) -> None:
        """Seat those who wait and are of strictly higher priority than somebody who runs, at their cost if need be.

        Before anybody is part of the step: from then on nobody's blocks can be taken, and a prompt of lower priority
        might take all the tokens of this step and of many more.
        """
        running, waiting = self._roster.running, self._roster.waiting
        while waiting and running and waiting.most_urgent().priority < running[-1].priority:
            if not self._seat(waiting.most_urgent(), draft):
                return

    def _seat(self, request: Request, draft: Draft) -> bool:
        """Let a waiting request run, with all blocks of its known tokens and of the next one; False: it does not fit.

        Those of strictly lower priority make room for it, and those who wait behind it give what they kept. Nobody
        gives anything unless all together are enough.
        """
        return (
            self._can_have_seat(request, draft)
            and self._can_have_blocks(request, draft)
            and self._find_seat(request, draft)
            and self._find_blocks(request, draft)
        )

    def _can_have_seat(self, request: Request, draft: Draft) -> bool:
        """Looked at first, for it costs nothing: a full engine need not look at the prefixes of those who wait."""
        running = self._roster.running
        return len(running) < draft.max_num_running or running[-1].priority > request.priority

    def _find_seat(self, request: Request, draft: Draft) -> bool:
        """Whether one more may run; of a strictly lower priority somebody gives up the seat, if it is the last."""
        if len(self._roster.running) < draft.max_num_running:
            return True
        return self._take_from(self._running_below(request), request, 0, PreemptionReason.SEATS, draft)

    def _can_have_blocks(self, request: Request, draft: Draft) -> bool:
        num_missing = self._tables.num_missing(request, _num_claimed(request), len(self._roster.running))
        if num_missing <= 0:
            return True
        below = [each for each in self._running_below(request) if _is_preemptible(each, draft)]
        num_gained = self._tables.num_gained(request, [*below, *self._waiting_behind(request)])
        return num_missing <= num_gained + len(below)  # each of those who run also counts one block of the margin

    def _find_blocks(self, request: Request, draft: Draft) -> bool:
        """Seat a waiting request with its blocks; False: they cannot be taken in this step."""
        roster, num_tokens = self._roster, _num_claimed(request)
        # One spare block for each running request: none of them has to preempt within `block_size` steps.
        while (claim := self._tables.try_claim(request, num_tokens, len(roster.running), draft.step)) is None:
            candidates = [*self._running_below(request), *self._waiting_behind(request)]
            num_missing = self._tables.num_missing(request, num_tokens, len(roster.running))
            if not self._take_from(candidates, request, num_missing, PreemptionReason.BLOCKS, draft):
                return False
        request.is_reserved = request.num_preemptions >= RESERVED_AFTER
        roster.seat(request)
        draft.admitted.append((request, claim))
        return True

    def _running_below(self, request: Request) -> list[Request]:
        return [each for each in self._roster.running if each.priority > request.priority]

    def _waiting_behind(self, request: Request) -> list[Request]:
        """Those who hold blocks while they wait; of them the first of all, whom nobody may hold up, takes from all."""
        is_first = request is self._roster.waiting.first()
        holders = (each for each in self._roster.waiting.holders if each is not request)
        return [each for each in holders if is_first or each.precedence > request.precedence]

    def _make_room(self, request: Request, draft: Draft) -> bool:
        """A slot for the request's last token, at the cost of later requests if need be; False: not in this step."""
        while not self._tables.try_grow(request):
            draft.is_short_of_blocks = True
            holders = (*self._roster.running, *self._roster.waiting.holders)
            later = [each for each in holders if each.precedence > request.precedence]
            if not self._take_from(later, request, 1, PreemptionReason.BLOCKS, draft):
                self._stall(request, draft)
                return False
        request.is_stalled = False
        return True

    def _stall(self, request: Request, draft: Draft) -> None:
        if request.is_stalled:
            return
        request.is_stalled = True
        why = "no block is free, and none can be taken from a later request"
        self._events.record(
            EngineEvent(EventKind.STALLED, draft.step - 1, draft.now, request.request_id, why, len(request.token_ids))
        )

    def _take_from(
        self, requests: Sequence[Request], request: Request, num_wanted: int, reason: PreemptionReason, draft: Draft
    ) -> bool:
        """Preempt one of these for `request`; False when none of them can be, or need not be."""
        if num_wanted > 0 and self._tables.pool.num_pending > 0:
            return False  # blocks in flight come back by themselves
        candidates = [each for each in requests if _is_preemptible(each, draft)]
        # Nobody is stopped while somebody who is stopped anyway still holds blocks.
        stopped = [each for each in candidates if not is_running(each.state)]
        victims = {each.request_id: each for each in stopped or candidates}
        chosen = choose_preemption(
            [self._candidate(each) for each in victims.values()],
            num_wanted,
            self._rules.block_size,
            self._rules.mode,
            self._rules.policy,
            self._rules.cost,
        )
        if chosen is None:
            return False
        victim = victims[chosen.request_id]
        needs = "a seat" if reason is PreemptionReason.SEATS else f"{num_wanted} blocks"
        why = (
            f"{request.request_id} (priority {request.priority}) needs {needs} and none is free; of {len(victims)} "
            f"behind it this one (priority {victim.priority}) costs {chosen.cost_s * 1e3:.1f} ms by {chosen.kind}"
        )
        self.preempt(victim, chosen, reason, why, draft.step - 1, draft.now)
        return True

    def _candidate(self, request: Request) -> Candidate:
        return Candidate(
            request_id=request.request_id,
            precedence=request.precedence,
            num_preemptions=request.num_preemptions,
            num_output_tokens=request.num_output_tokens,
            num_computed_tokens=request.num_computed_tokens,
            own_blocks=self._tables.own_blocks(request),
            num_known_blocks=request.num_known_blocks if self._rules.prefix_caching else 0,
            num_host_blocks=self._tables.num_host_blocks_for(request),
        )

    def _end_standstill(self, draft: Draft) -> None:
        """Nothing runs and nothing will come back: what those who wait kept, and those who run hold, must move.

        The last of those who run gives way, until the first of those who wait has all that it needs.
        """
        self._admit(draft)
        running = self._roster.running
        while not draft.shares and running:
            last = running[-1]
            why = "nobody who runs can go on, and those who wait hold the other blocks"
            everything = Preemption.of_everything(last.request_id)
            self.preempt(last, everything, PreemptionReason.BLOCKS, why, draft.step - 1, draft.now)
            self._admit(draft)


def _is_preemptible(request: Request, draft: Draft) -> bool:
    """Not while a step writes its blocks, and not where this step's copies have still to fill them."""
    is_just_seated = any(request is admitted for admitted, _ in draft.admitted)
    return not (request.in_flight or request.is_reserved or is_just_seated)


def _num_claimed(request: Request) -> int:
    """Tokens whose blocks a request gets when it is admitted: the known ones and the next, or all there may be."""
    if request.num_preemptions >= RESERVED_AFTER:
        return request.num_final_tokens
    return len(request.token_ids) + 1
