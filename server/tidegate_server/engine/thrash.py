"""Holds back admissions while preemptions undo what steps have computed, and says how much of it they undo."""

from typing import Final

# Preemptions count for about so many steps: a burst of them is one event, and two in an hour are none.
_RATE_STEPS: Final = 64
# So many preemptions within that time are no thrash: one, or one in eight of the requests that run.
_TOLERATED_PREEMPTIONS: Final = 1.5  # the one before has faded by then, but not to nothing
_TOLERATED_SHARE: Final = 1 / 8
# Tried on the scheduler alone, with memory for 8 and for 40 full sequences and 64 to 300 requests, of one or of many
# lengths, all at once or arriving too fast: a fifth to a half fewer preemptions than without a limit, for -2 to +5 % of
# the time. With 0.5 instead it was up to +14 %; with 16 steps there were up to a half more preemptions.
_DECREASE: Final = 0.9
_STEPS_PER_INCREASE: Final = 32
# The level looks back so many steps: several seconds, as long as the operator's samples are apart.
_LEVEL_STEPS: Final = 256


class ThrashControl:
    """The limit on running requests: additive increase, multiplicative decrease, driven by the preemption rate.

    When more requests are preempted than chance explains, the limit falls to nine tenths of those that ran; each run of
    calm steps raises it by one, up to the configured most. It only holds back admissions: nobody is preempted for it.

    Attributes:
        limit: most requests that may run, 1 to `max_num_seqs`.
        level: of the tokens handled lately, the share that had been handled before and was computed again or copied
            back because of preemptions, 0 to 1. At 0.2 a fifth of the work is wasted, which more KV memory, fewer
            requests at once or another replica would save.

    Source:
        Chiu and Jain 1989, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance".
    """

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs
        self.limit = max_num_seqs
        self._num_computed = 0.0  # per step, lately
        self._num_recomputed = 0.0
        self._num_preemptions = 0.0  # of the last steps, older ones counting less
        self._num_calm_steps = 0  # without a preemption, since the last one or the last increase

    @property
    def level(self) -> float:
        handled = self._num_computed + self._num_recomputed
        return self._num_recomputed / handled if handled > 0 else 0.0

    def on_step(self, num_computed: int, num_recomputed: int, num_preemptions: int, num_running: int) -> None:
        """Take in one step; idle ones too, since an idle engine starts afresh.

        Args:
            num_computed: tokens that the step computed for the first time.
            num_recomputed: tokens that had been computed before: computed again by the step, or copied back from the
                host for it.
            num_preemptions: since the last step.
            num_running: requests that run after them.
        """
        if num_computed == num_recomputed == num_preemptions == num_running == 0:
            self._start_afresh()
            return
        self._num_computed += (num_computed - self._num_computed) / _LEVEL_STEPS
        self._num_recomputed += (num_recomputed - self._num_recomputed) / _LEVEL_STEPS
        self._num_preemptions *= 1 - 1 / _RATE_STEPS
        self._num_preemptions += num_preemptions
        if num_preemptions == 0:
            self._count_calm_step()
            return
        self._num_calm_steps = 0
        num_before = num_running + num_preemptions
        if self._num_preemptions > max(_TOLERATED_PREEMPTIONS, _TOLERATED_SHARE * num_before):
            self.limit = max(1, min(self.limit, int(_DECREASE * num_before)))
            self._num_preemptions = 0.0  # they are answered; the next decrease needs others

    def _count_calm_step(self) -> None:
        self._num_calm_steps += 1
        if self._num_calm_steps >= _STEPS_PER_INCREASE:
            self._num_calm_steps = 0
            self.limit = min(self._max_num_seqs, self.limit + 1)

    def _start_afresh(self) -> None:
        self.limit = self._max_num_seqs
        self._num_computed = self._num_recomputed = self._num_preemptions = 0.0
        self._num_calm_steps = 0
