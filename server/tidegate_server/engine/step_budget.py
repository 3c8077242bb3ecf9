"""How many prompt tokens a step may compute beside its decodes."""

from dataclasses import dataclass
from typing import Final

from tidegate_server.engine.step_time import StepShape, StepTimeModel

# Of the allowance, what a prompt is given: the time of a product grows in steps, a tile of rows at a time, where the
# model draws a line, and while a long prompt is computed no step without one shows what the decodes cost meanwhile.
_AIM: Final = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBudget:
    """The smaller of a cap in tokens and what keeps a prompt from holding decodes back for longer than a target.

    The target is a multiple of the time that the decodes of the step would take without prompts, and each prompt may
    lengthen the step by what is above one. So a prompt of any length holds decodes back by no more than that. With a
    target of 2, k prompts at once lengthen a step by k times the decodes' own time: under a heavy load, where there is
    always a prompt, one allowance for all made first tokens three times later and gained little (a simulated W3, 60 s
    at 2 requests/s: TTFT p50 1.02 s, p99 3.1 s and TPOT p99 44 ms, instead of 0.52 s, 1.6 s and 68 ms; 0.33 s, 1.2 s
    and 88 ms without a target). One token of a prompt goes into every step nevertheless, or a prompt might never end.

    The scheduler asks once for each prompt, in the order in which they are served:

        decodes = planned = shape_of(shares of the step's decodes)
        for each request with more than one token to compute, then for each that is to be admitted:
            most = budget.num_prefill_tokens(decodes, planned, start)
            if most == 0: nobody computes prompt tokens in this step any more
            num_tokens = min(request.num_new_tokens, most)
            planned = planned.plus(start, num_tokens)

    with `start` the request's first position to compute: what the prefix cache has is not computed.
    """

    token_cap: int
    time_target: float  # multiple of the decodes' own time, at least 1; 0: no target
    model: StepTimeModel

    def num_prefill_tokens(self, decodes: StepShape, planned: StepShape, start: int) -> int:
        """Most tokens that one more prompt may compute in the step; 0: no more prompts in this step.

        Args:
            decodes: the step with its decodes alone.
            planned: the step as far as it is put together: the decodes, and the prompts that were asked for before.
            start: position of the prompt's first token to compute.
        """
        num_left = self.token_cap - planned.num_new_tokens
        if num_left <= 0:
            return 0
        decodes_s = self.model.predict(decodes)
        # Nobody to hold back, no target, or nothing observed yet that would tell what a decode takes.
        if decodes.num_requests == 0 or self.time_target == 0 or decodes_s == 0.0:
            return num_left
        # Half of the steps take longer than predicted, few by more than twice the mean error.
        allowance_s = _AIM * decodes_s * (self.time_target - 1) / (1 + 2 * self.model.error_ratio)
        limit_s = self.model.predict(planned) + allowance_s
        num_tokens = self.model.num_tokens_within(limit_s, planned, start, num_left)
        is_first = planned.num_new_tokens == decodes.num_new_tokens
        return max(num_tokens, 1) if is_first else num_tokens
